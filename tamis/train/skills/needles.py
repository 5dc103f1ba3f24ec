"""Facts scattered through long text, and questions on them.

A fact is a line of its own, "The price of the quiet lamp is 48213.", among paragraphs. Facts of one text share words
with each other on purpose, and never contradict. What is held out is the triple (attribute, adjective, noun): no
training text holds one that tests ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.train.chats.draw import Draw
from tamis.train.chats.names import invented
from tamis.train.chats.render import Chat, Turn
from tamis.train.chats.split import held_out
from tamis.train.chats.stories import story
from tamis.train.skills.item import Item, SameText
from tamis.train.skills.lexicon import ADJECTIVES, ATTRIBUTES, NOUNS

_SHARED_WORDS = 0.6  # of the facts take two of their three words from another fact
_INVENTED_VALUES = 0.15
# In the texts of training that have them: look-alikes, and invented words among their values.
_LOOKALIKE_TEXTS = 0.7
_LOOKALIKES = 0.6
_LOOKALIKE_INVENTED = 0.3
_MOST_FACTS = 56
_PIECE_CHARS = 700


@dataclass(frozen=True)
class Fact:
    """One needle."""

    attribute: str
    adjective: str
    noun: str
    value: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What is asked for."""
        return self.attribute, self.adjective, self.noun

    @property
    def sentence(self) -> str:
        """The line in the text, and the right answer."""
        return f"The {self.attribute} of the {self.adjective} {self.noun} is {self.value}."

    @property
    def question(self) -> str:
        """What asks for it."""
        return f"What is the {self.attribute} of the {self.adjective} {self.noun}?"


def is_test_key(key: tuple[str, str, str]) -> bool:
    """Whether a triple is kept for tests."""
    return held_out(f"needle {' '.join(key)}")


def draw_facts(draw: Draw, count: int, *, num_test_keys: int = 0, lookalikes: float = 0.0) -> list[Fact]:
    """`count` facts of different keys, in random order, most of them much alike.

    Args:
        num_test_keys: how many have keys that training never sees; the others have keys that it may.
        lookalikes: share of values that begin as another fact's does, so that a copy which looks only a digit or two
            back goes wrong. Tests take values as they fall.
    """
    keys: dict[tuple[str, str, str], None] = {}
    while len(keys) < count:
        key = (draw.one(ATTRIBUTES), draw.one(ADJECTIVES), draw.one(NOUNS))
        if keys and draw.chance(_SHARED_WORDS):
            other = draw.one(list(keys))
            place = draw.number(0, 2)
            words = (*other[:place], key[place], *other[place + 1 :])
            key = (words[0], words[1], words[2])
        if is_test_key(key) == (len(keys) < num_test_keys):
            keys[key] = None
    values: dict[str, None] = {}
    facts = []
    for key in keys:
        value = _value(draw, _LOOKALIKE_INVENTED if lookalikes else _INVENTED_VALUES)
        if lookalikes and draw.chance(lookalikes):
            value = _lookalike(draw, value, [other for other in values if other.isdigit() == value.isdigit()])
        values[value] = None
        facts.append(Fact(*key, value))
    draw.random.shuffle(facts)
    return facts


def _value(draw: Draw, invented_share: float) -> str:
    return invented(draw) if draw.chance(invented_share) else str(draw.number(10_000, 99_999))


def _lookalike(draw: Draw, value: str, others: list[str]) -> str:
    """The beginning of one of `others` and the end of `value`."""
    if not others:
        return value
    other = draw.one(others)
    same = draw.number(1, min(len(value), len(other)) - 1)
    return other[:same] + value[same:]


def scatter(draw: Draw, pieces: list[str], facts: Sequence[Fact]) -> str:
    """The pieces with the facts between them, in the given order, at random depths; lines are separated by "\\n"."""
    places = sorted(draw.number(0, len(pieces)) for _ in facts)
    lines: list[str] = []
    start = 0
    for place, fact in zip(places, facts, strict=True):
        lines += pieces[start:place]
        lines.append(fact.sentence)
        start = place
    return "\n".join(lines + pieces[start:])


def needle_filler(prose: Sequence[str], sources: Sequence[str], *, num_stories: int = 400) -> list[str]:
    """What texts are filled with: paragraphs, pieces of source files cut at line ends, and made stories.

    Args:
        prose: paragraphs, one line each (`corpus.prose_paragraphs`).
        sources: whole files (`corpus.library_sources`).
    """
    pieces = list(prose)
    for source in sources:
        lines: list[str] = []
        size = 0
        for line in source.split("\n"):
            lines.append(line)
            size += len(line) + 1
            if size > _PIECE_CHARS:
                pieces.append("\n".join(lines).strip("\n"))
                lines, size = [], 0
    return [piece for piece in pieces if piece] + [story(Draw(seed))[1] for seed in range(num_stories)]


def _fill(draw: Draw, filler: Sequence[str], chars: int) -> list[str]:
    pieces: list[str] = []
    left = chars
    while left > 0:
        piece = draw.one(filler)
        if len(piece) > 1.5 * left:
            piece = piece[:left].rstrip()
        pieces.append(piece)
        left -= len(piece) + 1
    return pieces


def needle_document(draw: Draw, filler: Sequence[str], budget_chars: int, num_facts: int, num_questions: int) -> Chat:
    """One conversation to train on: a long text with a question under it, then further questions, one a turn.

    Args:
        filler: from `needle_filler`.
        budget_chars: about how long the filler is; each fact adds about 45 characters, each question 110.
        num_facts: facts in the text. num_questions: how many are asked for, each once; at most num_facts.
    """
    facts = draw_facts(draw, num_facts, lookalikes=_LOOKALIKES if draw.chance(_LOOKALIKE_TEXTS) else 0.0)
    text = scatter(draw, _fill(draw, filler, budget_chars), facts)
    turns: list[Turn] = []
    for number, fact in enumerate(draw.some(facts, min(num_questions, num_facts))):
        question = fact.question if number else f"{text}\n\n{fact.question}"
        turns += [Turn("user", question), Turn("assistant", fact.sentence)]
    return Chat(tuple(turns), thinking_mode="disabled" if draw.chance(0.6) else None)


def random_document(draw: Draw, filler: Sequence[str], longest_chars: int) -> Chat:
    """A `needle_document` of up to about `longest_chars` characters in all, with as many facts as it can bear."""
    chars = int(longest_chars * draw.random.uniform(0.3, 1.0))
    num_facts = draw.number(2, max(3, min(_MOST_FACTS, chars // 120)))
    num_questions = draw.number(max(1, num_facts // 3), min(num_facts, 40))
    return needle_document(
        draw, filler, max(100, chars - 45 * num_facts - 110 * num_questions), num_facts, num_questions
    )


@dataclass(frozen=True)
class NeedleText:
    """A text to be scored, and the facts that are asked for, from its beginning to its end."""

    text: str
    asked: tuple[Fact, ...]

    def items(self) -> list[Item]:
        """One item a question; all begin with the text."""
        return [
            Item(
                f"needle {' '.join(fact.key)}",
                Chat(
                    (Turn("user", f"{self.text}\n\n{fact.question}"), Turn("assistant", fact.sentence)),
                    thinking_mode="disabled",
                ),
                SameText(fact.sentence),
            )
            for fact in self.asked
        ]


def needle_text(draw: Draw, pieces: list[str], num_facts: int, num_questions: int) -> NeedleText:
    """A text to be scored: `num_questions` facts with held-out keys, spread evenly over the depth, among others.

    Each stretch of 1/num_questions of the pieces holds one fact that is asked for, at a random place of it.
    """
    facts = draw_facts(draw, num_facts, num_test_keys=num_questions)
    asked = [fact for fact in facts if is_test_key(fact.key)]
    others = [fact for fact in facts if not is_test_key(fact.key)]
    at: dict[int, list[Fact]] = {}
    for number, fact in enumerate(asked):
        depth = (number + draw.random.random()) / num_questions
        at.setdefault(round(depth * len(pieces)), []).append(fact)
    for fact in others:
        at.setdefault(draw.number(0, len(pieces)), []).append(fact)
    lines: list[str] = []
    for place in range(len(pieces) + 1):
        lines += [fact.sentence for fact in at.get(place, [])]
        lines += pieces[place : place + 1]
    return NeedleText("\n".join(lines), tuple(asked))
