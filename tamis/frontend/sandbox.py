"""Where chat templates run: jinja2's immutable sandbox with what Hugging Face templates expect, and within bounds.

They expect `raise_exception`, `strftime_now`, a `tojson` that keeps non-ASCII characters, loop controls, and blocks
trimmed. A rendering that loops or grows without end raises OverflowError; it could not be stopped from outside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Far beyond any prompt, and rendered within about a second.
MAX_PROMPT_CHARS = 32 * 1024 * 1024
MAX_RANGE_STEPS = 1_000_000


class RefusedByTemplate(jinja2.TemplateError):
    """What a template says through `raise_exception`."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Products and powers must not make more than a prompt can hold either."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, for values of bounded size."""
        if operator == "**":
            if not (abs(left) < 2**64 and abs(right) <= 64):
                raise OverflowError("the power is too high")
            return left**right
        for value, count in ((left, right), (right, left)):
            if isinstance(value, (str, bytes, list, tuple)) and isinstance(count, int):
                _check_size(len(value) * count)
        return left * right


def _check_size(chars: int) -> None:
    if chars > MAX_PROMPT_CHARS:
        raise OverflowError(f"it makes more than {MAX_PROMPT_CHARS} characters")


def join_bounded(pieces: Iterable[str]) -> str:
    """The rendered text, within `MAX_PROMPT_CHARS`; raises OverflowError beyond."""
    kept: list[str] = []
    chars = 0
    for piece in pieces:
        chars += len(piece)
        _check_size(chars)
        kept.append(piece)
    return "".join(kept)


def _length(steps: range) -> int:
    """Its length, which len() has for 63 bits only."""
    return (steps[-1] - steps[0]) // steps.step + 1 if steps else 0


def bounded_range() -> Callable[..., range]:
    """`range` for one rendering, which all its loops together may step through `MAX_RANGE_STEPS` times."""
    steps = 0

    def bounded(*args: int) -> range:
        nonlocal steps
        made = range(*args)
        steps += _length(made)
        if steps > MAX_RANGE_STEPS:
            raise OverflowError(f"its loops take more than {MAX_RANGE_STEPS} steps")
        return made

    return bounded


def sandbox() -> ImmutableSandboxedEnvironment:
    """An environment for one checkpoint's template."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise RefusedByTemplate(message)
