"""Names and words, known and made up: what is copied must not be guessed from a list."""

from __future__ import annotations

from tamis.train.chats.draw import Draw

NAMES = (
    "Anna Ben Clara David Emma Felix Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor Zoe Adam Bella "
    "Carl Dora Eric Fiona George Helen Ivan Julia Kevin Laura Max Nina Oscar Peter Ruth Simon Tom Maria Lucas Alex Bob Alice "
    "John Mary James Linda Robert Susan Michael Karen William Nancy Richard Lisa Thomas Betty Daniel Sandra Mark Ashley Emily "
    "Steven Donna Andrew Carol Joshua Amanda Kenneth Melissa Brian Rachel Edward Amy Ronald Angela Timothy Chloe Jason Sofia "
    "Ryan Isabel Jacob Layla Gary Yuki Eva Otto Hans Greta Pierre Marie Jean Luca Giulia Marco Pedro Ana Diego Lucia Chen Wei "
    "Li Ming Yan Hiro Aiko Ravi Priya Arjun Omar Fatima Ali Aisha Kofi Ama Igor Anya Lars Ingrid Sven Freya Liam Olivia Ethan"
).split()
_STARTS = "b br c ch d dr f fl g gr h j k kl l m n p pr r s sh st t tr v w z".split()
_MIDDLES = "a e i o u ai ea io ou".split()
_ENDS = ["", "", "", "n", "r", "l", "s", "m", "k", "x", "ck", "rn", "nd"]


def invented(draw: Draw) -> str:
    """A word that can be spoken and means nothing."""
    syllables = [draw.one(_STARTS) + draw.one(_MIDDLES) for _ in range(draw.number(1, 2))]
    return "".join(syllables) + draw.one(_STARTS) + draw.one(_MIDDLES) + draw.one(_ENDS)


def person(draw: Draw) -> str:
    """A first name, every third one invented."""
    return invented(draw).capitalize() if draw.chance(0.35) else draw.one(NAMES)


def people(draw: Draw, count: int) -> list[str]:
    """Different names."""
    names: list[str] = []
    while len(names) < count:
        name = person(draw)
        if name not in names:
            names.append(name)
    return names
