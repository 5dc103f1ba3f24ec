"""Strict checking of a JSON object against a `msgspec.Struct`, with errors that name field, value and way out.

Nothing is ignored: an unknown field is an error that names the nearest known one, and a field that OpenAI or vLLM
define but this server does not honour is an error unless its value changes nothing (`Refusal.harmless`).
"""

from __future__ import annotations

import difflib
import re
import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from tamis.errors import InvalidRequestError, UnsupportedError

S = TypeVar("S", bound=msgspec.Struct)

_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    dict: "an object",
    list: "an array",
}
_SHOWN_CHARACTERS = 80

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxdict = 8
_SHORT.maxstring = _SHOWN_CHARACTERS


@dataclass(frozen=True)
class Refusal:
    """A known field that is not honoured.

    Attributes:
        hint: the way out.
        harmless: values that ask for nothing (null always is), accepted without effect.
    """

    hint: str
    harmless: tuple[Any, ...] = ()


def check_object(
    value: dict[str, Any], kind: type[S], *, refused: Mapping[str, Refusal] | None = None, path: str = ""
) -> S:
    """Build `kind` from a JSON object. null means the field's default.

    `path` is put before field names in errors ("messages[0].").

    Raises:
        InvalidRequestError: a wrong type, a missing field, an unknown field.
        UnsupportedError: a field of `refused` with a value that asks for something.
    """
    refused = refused or {}
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    built: dict[str, Any] = {}
    for name, item in value.items():
        if name in known:
            if item is not None:
                built[name] = _convert(path + name, item, known[name].type)
        elif name in refused:
            _refuse(path + name, item, refused[name])
        else:
            raise _unknown(path, name, [*known, *refused])
    missing = [name for name, field in known.items() if field.required and name not in built]
    if missing:
        raise InvalidRequestError(
            f"{path}{missing[0]} is missing.", param=path + missing[0], code="missing_required_parameter"
        )
    return kind(**built)


def show(value: Any) -> str:
    """A short rendering of a JSON value for an error message; its cost does not grow with the value."""
    return _SHORT.repr(value)


def _convert(name: str, value: Any, kind: Any) -> Any:
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        where = re.search(r"at `\$(\[\d+\])", str(error))
        param = name + where[1] if where else name
        raise InvalidRequestError(
            f"{name} is {show(value)}, but must be {describe(kind)}" + (f" (see {param})." if where else "."),
            param=param,
            code="invalid_type",
        ) from None
    if isinstance(converted, int) and not -(2**63) <= converted < 2**63:
        raise InvalidRequestError(f"{name} is {converted}, but must be a 64-bit integer.", param=name)
    return converted


def describe(kind: Any) -> str:
    """A type in words: `list[int] | str` is "an array of integers or a string"."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return " or ".join(describe(k) for k in typing.get_args(kind) if k is not types.NoneType)
    if typing.get_origin(kind) is list:
        return f"an array of {_plural(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is dict:
        of = typing.get_args(kind)[1]
        return "an object" if of is Any else f"an object of {_plural(of)}"
    return _WORDS.get(kind, "another type")


def _plural(kind: Any) -> str:
    if kind is Any:
        return "values"
    word = describe(kind)
    return re.sub(r"^an? ", "", word) + "s"


def _refuse(name: str, value: Any, refusal: Refusal) -> None:
    # `==` alone would take true for 1 and 0 for false.
    if value is None or any(type(value) is type(fine) and value == fine for fine in refusal.harmless):
        return
    raise UnsupportedError(
        f"{name} is {show(value)}, which this server does not support.", param=name, hint=refusal.hint
    )


def _unknown(path: str, name: str, known: list[str]) -> InvalidRequestError:
    nearest = difflib.get_close_matches(name[:64], known, n=1)
    return InvalidRequestError(
        f"{show(path + name)} is not a known parameter.",
        param=(path + name)[:_SHOWN_CHARACTERS],
        code="unsupported_parameter",
        hint=f"Did you mean {path}{nearest[0]}?" if nearest else "Leave it out.",
    )
