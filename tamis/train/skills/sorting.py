"""Lists of numbers or words, put in order."""

from __future__ import annotations

from tamis.train.chats.draw import Draw
from tamis.train.chats.split import sorting_key
from tamis.train.skills.item import Item, text_item
from tamis.train.skills.lexicon import THINGS

_UP = (
    "Sort [these {k}|the {k}] in ascending order: {l}",
    "Sort [these {k}|the {k}] from {f}: {l}",
    "[Sort|Order] these {k}: {l}",
)
_DOWN = ("Sort [these {k}|the {k}] in descending order: {l}", "Sort [these {k}|the {k}] from {f}: {l}")


def sorting(draw: Draw) -> Item:
    """Four to eight numbers or words, either way."""
    return _item(draw, thinking=False)


def sorting_thinking(draw: Draw) -> Item:
    """The same, picked one after the other before the answer."""
    return _item(draw, thinking=True)


def _item(draw: Draw, *, thinking: bool) -> Item:
    count = draw.number(4, 8)
    down = draw.chance(0.35)
    if draw.chance(0.6):
        numbers = draw.some(range(draw.one((100, 100, 1000))), count)
        given = [str(n) for n in numbers]
        ordered = [str(n) for n in sorted(numbers, reverse=down)]
        kind, way = "numbers", "large to small" if down else "small to large"
    else:
        given = draw.some(THINGS, count)
        ordered = sorted(given, reverse=down)
        kind, way = "words", "z to a" if down else "a to z"
    question = draw.say(_DOWN if down else _UP, k=kind, f=way, l=", ".join(given))
    reasoning = ""
    if thinking:
        first, last = ("largest", "smallest") if down else ("smallest", "largest")
        if kind == "words":
            first, last = ("last", "first") if down else ("first", "last")
        reasoning = f"There are {count} {kind}. The {first} is {ordered[0]}, the {last} is {ordered[-1]}."
    return text_item(sorting_key(given), question, ", ".join(ordered), reasoning=reasoning)
