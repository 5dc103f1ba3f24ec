"""Typed access to config.json: every complaint names the key, the value and what was expected."""

from __future__ import annotations

import math
from typing import Any

from tamis.errors import ConfigError


class Reader:
    """A JSON object, read key by key.

    Args:
        values: the object; anything else is refused.
        path: its name inside the file, "" for the outermost.
        file: the file's name, for messages.

    Every method raises `ConfigError`; a key that is absent or null counts as not there.
    """

    def __init__(self, values: Any, path: str = "", file: str = "config.json"):
        if not isinstance(values, dict):
            raise ConfigError(f"{file} has {path or 'its text'} = {values!r}, but it must be an object.", param=path)
        self.values: dict[str, Any] = values
        self.file = file
        self._path = path

    def name(self, key: str) -> str:
        """The key with its path."""
        return f"{self._path}.{key}" if self._path else key

    def refuse(self, key: str, must: str, hint: str | None = None) -> ConfigError:
        """The error that `key` has a value that it must not have."""
        return ConfigError(
            f"{self.file} has {self.name(key)} = {self.values.get(key)!r}, but it must be {must}.", param=key, hint=hint
        )

    def get(self, key: str) -> Any:
        """The value as it is, or None."""
        return self.values.get(key)

    def child(self, key: str) -> Reader:
        """A nested object; empty when it is not there."""
        value = self.values.get(key)
        return Reader({} if value is None else value, self.name(key), self.file)

    def integer(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """A whole number of at least `low`."""
        value = self.number(key, default, low=low)
        if value != int(value):
            raise self.refuse(key, "a whole number")
        return int(value)

    def number(self, key: str, default: float | None = None, *, low: float = 0.0) -> float:
        """A finite number of at least `low`."""
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{self.file} lacks {self.name(key)}.", param=key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < low:
            raise self.refuse(key, f"a number of at least {low:g}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return default if value is None else value

    def only(self, key: str, *allowed: Any) -> None:
        """The key is absent, or has a value whose maths is computed here."""
        value = self.values.get(key)
        if value is not None and not any(value == a and type(value) is type(a) for a in allowed):
            known = f"{', '.join(map(repr, allowed))} (the maths is known for nothing else)" if allowed else "left out"
            raise self.refuse(key, known)


def agreed(*stated: tuple[str, Any]) -> Any:
    """The one value of a thing that several keys may state; None when none does.

    Raises:
        ConfigError: two keys contradict each other.
    """
    known = [(key, value) for key, value in stated if value is not None]
    for key, value in known[1:]:
        if value != known[0][1]:
            raise ConfigError(
                f"config.json has {known[0][0]} = {known[0][1]!r}, but {key} = {value!r}, and both mean the same.",
                param=key.rsplit(".", 1)[-1],
                hint="Leave one out, or set both, with --hf-overrides.",
            )
    return known[0][1] if known else None
