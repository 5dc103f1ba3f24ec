"""Random choices that read like sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_CHOICE = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")


class Draw:
    """A seeded source of choices.

    `say("[Hi|Hello], I am {name}.", name="Ann")` picks one alternative of each bracket, innermost first, then fills
    the slots. An alternative may be empty. Brackets without a bar stay as they are.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def one(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return options[int(self.random.random() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different ones, in random order."""
        return self.random.sample(options, count)

    def number(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        return low + int(self.random.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self.random.random() < probability

    def say(self, text: str | Sequence[str], **slots: Any) -> str:
        """A sentence from a pattern, or from one of several."""
        pattern = text if isinstance(text, str) else self.one(text)
        while "|" in pattern:
            changed = _CHOICE.sub(lambda match: self.one(match.group(1).split("|")), pattern)
            if changed == pattern:
                break
            pattern = changed
        for key, value in slots.items():
            pattern = pattern.replace("{" + key + "}", str(value))
        return pattern
