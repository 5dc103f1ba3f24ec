"""Loose keyword values, from Python or from JSON flags, become a checked `EngineConfig`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from tamis.config import AttentionConfig, EngineConfig
from tamis.errors import ConfigError


def build_config(values: Mapping[str, Any]) -> EngineConfig:
    """An `EngineConfig` of these fields; `attention_config` may be a mapping.

    Raises:
        ConfigError: an unknown field (naming the nearest), a value of the wrong type, or one the config refuses.
    """
    _check_names(values, EngineConfig, "engine argument")
    plain = dict(values)
    attention = plain.get("attention_config")
    if isinstance(attention, AttentionConfig):
        plain["attention_config"] = dataclasses.asdict(attention)
    elif isinstance(attention, Mapping):
        _check_names(attention, AttentionConfig, "field of attention_config")
    try:
        return msgspec.convert(plain, EngineConfig)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        value: Any = plain
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        raise ConfigError(f"{name} is {value!r}: {what}.", param=name or None) from error


def _check_names(values: Mapping[str, Any], config: type[Any], what: str) -> None:
    known = [field.name for field in dataclasses.fields(config)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise ConfigError(
                f"{name!r} is no {what}.",
                param=str(name),
                hint=f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}.",
            )
