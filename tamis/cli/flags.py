"""Command-line flags made from the fields of a config dataclass: names, types, defaults and help have one home."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any, get_origin, get_type_hints

from cyclopts import Parameter

from tamis.errors import ConfigError


def flags_of(config: type[Any], *, leave_out: frozenset[str] = frozenset()) -> list[inspect.Parameter]:
    """One parameter for each field, in cyclopts' terms.

    A field's metadata holds `help`, and may hold `alias` (the flag's first spelling) and `positional`. Fields that
    are mappings or dataclasses take JSON text (see `config_values`).
    """
    hints = get_type_hints(config)
    return [_parameter(field, hints[field.name]) for field in dataclasses.fields(config) if field.name not in leave_out]


def config_values(config: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parsed `values` that are fields of `config`, JSON text parsed.

    Raises:
        ConfigError: for text that is no JSON object, naming flag and place.
    """
    hints = get_type_hints(config)
    return {
        field.name: _from_json(field.name, values[field.name]) if _takes_json(hints[field.name]) else values[field.name]
        for field in dataclasses.fields(config)
        if field.name in values
    }


def _parameter(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    spellings = [f"--{field.name.replace('_', '-')}"]
    if alias := field.metadata.get("alias"):
        spellings.insert(0, f"--{alias}")
    default = None if field.default is dataclasses.MISSING else field.default
    positional = field.metadata.get("positional", False)
    options = Parameter(
        name=spellings,
        help=field.metadata["help"],
        # An "--empty-api-key" would help nobody; only switches have a negative form.
        negative=None if hint is bool else (),
        show_default=default is not False and default not in (None, ()),
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if positional else inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[str | None if _takes_json(hint) else hint, options],
    )


def _takes_json(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or hint is dict or get_origin(hint) is dict


def _from_json(name: str, text: str) -> dict[str, Any]:
    flag = f"--{name.replace('_', '-')}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{flag} is {text!r}, which is not valid JSON: {error}.",
            param=name,
            hint="""Quote it for the shell, e.g. '{"key": "value"}'.""",
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} is {text!r}, but must be a JSON object.", param=name)
    return value
