"""Which problems are never trained on: a question of content, so that every generator agrees without a list."""

from __future__ import annotations

import hashlib

_SHARE = 32


def held_out(key: str) -> bool:
    """Whether the problem that `key` describes, in its canonical spelling, is kept for tests: one in 32."""
    return hashlib.sha256(key.encode()).digest()[0] % _SHARE == 0


def operation_key(sign: str, a: int, b: int) -> str | None:
    """The key of `a sign b`; sums and products whatever the order.

    None for what is learnt by heart: the table up to 12 × 12, sums and differences with a number up to 12.
    """
    if (max(a, b) if sign == "*" else min(a, b)) <= 12:
        return None
    if sign in "+*" and a > b:
        a, b = b, a
    return f"{a} {sign} {b}"


def held_out_operation(sign: str, a: int, b: int) -> bool:
    """Whether `a sign b` is kept for tests."""
    key = operation_key(sign, a, b)
    return key is not None and held_out(key)


def sorting_key(given: list[str]) -> str:
    """The key of putting a list in order: the same whatever the order it is given in, and whichever way it is to go."""
    return f"sort {' '.join(sorted(given))}"


def length_key(given: list[str]) -> str:
    """The key of counting a list."""
    return f"length {' '.join(given)}"
