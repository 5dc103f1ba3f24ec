"""How many items a list has, and how often one stands in it."""

from __future__ import annotations

from tamis.train.chats.draw import Draw
from tamis.train.chats.split import length_key
from tamis.train.skills.item import Item, text_item
from tamis.train.skills.lexicon import THINGS

_LONGEST = 12


def counting(draw: Draw) -> Item:
    """A list of up to twelve words: its length, or the places of one word."""
    return _item(draw, thinking=False)


def counting_thinking(draw: Draw) -> Item:
    """The same, counted aloud before the answer."""
    return _item(draw, thinking=True)


def _item(draw: Draw, *, thinking: bool) -> Item:
    reasoning = ""
    if draw.chance(0.5):
        words = draw.some(THINGS, draw.number(2, _LONGEST))
        count = len(words)
        question = draw.say(
            ("How many words are in this list: {l}?", "How many words are there: {l}?", "Count the words: {l}"),
            l=", ".join(words),
        )
        answer = f"There {'is' if count == 1 else 'are'} {count} {'word' if count == 1 else 'words'}."
        if thinking:
            reasoning = ", ".join(f"{i + 1} {word}" for i, word in enumerate(words)) + "."
        return text_item(length_key(words), question, answer, reasoning=reasoning)
    kinds = draw.some(THINGS, draw.number(2, 4))
    words = [draw.one(kinds) for _ in range(draw.number(4, _LONGEST))]
    asked = draw.one(kinds)
    count = words.count(asked)
    question = draw.say(
        (
            "How many times does {w} stand in this list: {l}?",
            "How often is the word {w} in this list: {l}?",
            "Count the word {w}: {l}",
        ),
        w=asked,
        l=", ".join(words),
    )
    answer = f"The word {asked} stands there {count} {'time' if count == 1 else 'times'}."
    if thinking:
        seen, steps = 0, []
        for word in words:
            seen += word == asked
            steps.append(f"{word} {seen if word == asked else 'no'}")
        reasoning = ", ".join(steps) + "."
    return text_item(f"count {asked} in {' '.join(words)}", question, answer, reasoning=reasoning)
