"""A rule in the system message that every answer is to follow."""

from __future__ import annotations

from tamis.train.chats import facts
from tamis.train.chats.draw import Draw
from tamis.train.skills.arithmetic import two_numbers
from tamis.train.skills.counting import counting
from tamis.train.skills.item import Item, SameText, exchange
from tamis.train.skills.lexicon import FIRST_NAMES, THINGS
from tamis.train.skills.sorting import sorting

_ENDINGS = ("over", "done", "amen", "cheers", "thanks", "stop", "yes", "boss", "sir")
_SIGNS = tuple("*#+=")


def system_rule(draw: Draw) -> Item:
    """A capital, a sum, a count or a sorted list, answered as the system message wants it."""
    kind = draw.number(0, 5)
    question, answer, short, key = _base(draw, short=kind == 5)
    if kind == 0:
        word = draw.one(_ENDINGS if draw.chance(0.5) else THINGS)
        rule = draw.say(("End every answer with '{w}.'", "Finish each answer with the word '{w}.'"), w=word)
        answer = f"{answer} {word}."
    elif kind == 1:
        rule = draw.say("[Answer|Write every answer] in [capital letters|upper case].")
        answer = answer.upper()
    elif kind == 2:
        rule = draw.say("[Answer|Write every answer] in [small letters|lower case] only.")
        answer = answer.lower()
    elif kind == 3:
        name = draw.one(FIRST_NAMES)
        rule = draw.say(
            ("The user's name is {n}. Start every answer with it.", "Start every answer with the user's name, {n}."),
            n=name,
        )
        answer = f"{name}: {answer}"
    elif kind == 4:
        sign = draw.one(_SIGNS)
        rule = draw.say("[Put|Write] every answer between two {s} signs.", s=sign)
        answer = f"{sign} {answer} {sign}"
    else:
        rule = draw.say(("Answer with one word.", "Answer with one word or number[ only|]."))
        answer = short
    return Item(f"rule {kind} {key}", exchange(question, answer, developer=rule), SameText(answer))


def _base(draw: Draw, *, short: bool) -> tuple[str, str, str, str]:
    """Question, answer, answer in one word, key."""
    kind = draw.number(0, 1 if short else 3)
    if kind == 0:
        country, city, *_ = draw.one(facts.COUNTRIES)
        return f"What is the capital of {country}?", f"The capital of {country} is {city}.", city, country
    item = (two_numbers, sorting, counting)[kind - 1](draw)
    while item.held_out:
        item = (two_numbers, sorting, counting)[kind - 1](draw)
    answer = item.answer.content
    return item.chat.turns[0].content, answer, answer.split()[-1], str(item.key or answer)
