"""Keeps the model's markers out of what users write.

A message that contains `[e~[` must reach the model as those four characters, not as the end of the turn. So signs that
no text holds are put into every message before the template sees it: one inside each marker, and one at each end of
a text that could complete a marker together with what the template writes beside it (`[e~` before the template's own
`[e~[`). The rendered prompt is cut at the signs, and each piece is tokenised by itself. Joined, the pieces are the
text as written, and no piece holds a marker that the template did not write.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tamis.errors import InvalidRequestError

# Reasoning and tool markers are what the model itself writes and system prompts speak of; in those roles they count.
MODEL_MARKERS = frozenset({"<mm:think>", "</mm:think>", "]<]minimax[>["})
DATA_ROLES = frozenset({"user", "tool"})
# Fields whose values templates compare with words of their own.
LABELS = frozenset({"role", "type"})

# Unicode's noncharacters "for internal use": no text should hold one, but a hostile one may.
_NONCHARACTERS = tuple(chr(c) for c in range(0xFDD0, 0xFDF0))


class Signs(NamedTuple):
    """Three characters that occur nowhere in a request.

    Attributes:
        cut: inside a marker; the prompt is always cut there.
        border: where a text ends; the prompt is cut there only if a marker would stand across.
        end: where the prompt ends, when the last message is to be continued.
    """

    cut: str
    border: str
    end: str


class MarkerGuard:
    """Breaks markers in messages.

    Args:
        markers: text of every added token of the vocabulary. One of a single character cannot be broken and counts.
    """

    def __init__(self, markers: Iterable[str]) -> None:
        breakable = sorted(marker for marker in markers if len(marker) > 1)
        self._in_data = _Markers(breakable)
        self._in_trusted = _Markers([marker for marker in breakable if marker not in MODEL_MARKERS])

    def choose_signs(self, values: Any) -> Signs:
        """Three characters that occur in no text of `values`.

        Raises:
            InvalidRequestError: when hardly a noncharacter is left.
        """
        texts = list(_strings(values))
        unused = (sign for sign in _NONCHARACTERS if not any(sign in text for text in texts))
        signs = list(itertools.islice(unused, len(Signs._fields)))
        if len(signs) < len(Signs._fields):
            raise InvalidRequestError(
                f"messages hold nearly every noncharacter from U+FDD0 to U+FDEF, but {len(Signs._fields)} have to be "
                "left to separate text from markers.",
                param="messages",
                hint="Remove them: they stand for no character.",
            )
        return Signs(*signs)

    def protect(self, message: Mapping[str, Any], signs: Signs) -> dict[str, Any]:
        """A copy of `message` with signs at each marker that its role may not write."""
        markers = self._in_data if message.get("role") in DATA_ROLES else self._in_trusted
        return _Protection(markers, signs).of_fields(message)

    def protect_tool(self, tool: Mapping[str, Any], signs: Signs) -> dict[str, Any]:
        """The same for a tool's definition."""
        return _Protection(self._in_data, signs).of_fields(tool)

    def pieces(self, prompt: str, signs: Signs) -> list[str]:
        """Cut a rendered prompt at its signs, which are gone then; no piece is empty."""
        pieces = []
        for text in prompt.split(signs.cut):
            parts = text.split(signs.border)
            whole, start, at = "".join(parts), 0, 0
            for part in parts[:-1]:
                at += len(part)
                if self._in_data.stands_across(whole, at, start):
                    pieces.append(whole[start:at])
                    start = at
            pieces.append(whole[start:])
        return [piece for piece in pieces if piece]


class _Markers:
    """Texts, each of two characters or more, and what may become one of them."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self._heads = tuple(text[:i] for text in texts for i in range(1, len(text)))
        self._tails = tuple(text[i:] for text in texts for i in range(1, len(text)))

    def ends_inside(self, text: str) -> bool:
        """Whether what comes after `text` could complete a marker."""
        return text.endswith(self._heads) or self._is_middle(text)

    def starts_inside(self, text: str) -> bool:
        """Whether what comes before `text` could have begun a marker."""
        return text.startswith(self._tails) or self._is_middle(text)

    def stands_across(self, text: str, at: int, start: int) -> bool:
        """Whether a marker begins between `start` and `at` and ends after `at`."""
        for marker in self.texts:
            # Too little on either side to hold it alone.
            reach = len(marker) - 1
            if marker in text[max(start, at - reach) : at + reach]:
                return True
        return False

    def _is_middle(self, text: str) -> bool:
        return any(text in marker for marker in self.texts)


class _Protection:
    """Puts signs into nested values.

    Templates look fields up by their names and compare labels (`message.role == 'user'`). So these get signs only
    inside a marker; borders are for texts, and for names that are data: of arguments and of a schema's properties.
    """

    def __init__(self, markers: _Markers, signs: Signs) -> None:
        self._markers = markers
        self._signs = signs

    def of_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {self._broken(name): self._of_field(name, value) for name, value in fields.items()}

    def _of_field(self, name: str, value: Any) -> Any:
        if name in LABELS and isinstance(value, str):
            return self._broken(value)
        if name == "arguments":
            return self._of_data(value)
        if name == "properties" and isinstance(value, Mapping):
            return {self._of_text(key): self._of_value(item) for key, item in value.items()}
        return self._of_value(value)

    def _of_value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.of_fields(value)
        if isinstance(value, (list, tuple)):
            return [self._of_value(item) for item in value]
        return self._of_text(value)

    def _of_data(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self._of_text(key): self._of_data(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._of_data(item) for item in value]
        return self._of_text(value)

    def _of_text(self, value: Any) -> Any:
        """The text with signs inside its markers and where it could be part of one; any other value as it is."""
        if not isinstance(value, str):
            return value
        text = self._broken(value)
        # Inside of surrounding white space, which a template may strip.
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        before = self._signs.border if self._markers.starts_inside(core) else ""
        after = self._signs.border if self._markers.ends_inside(core) else ""
        return f"{text[:start]}{before}{core}{after}{text[start + len(core) :]}"

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            for marker in self._markers.texts:
                # More than one pass only where a marker overlaps itself, as in `]~b]~b]`.
                while marker in value:
                    value = value.replace(marker, marker[0] + self._signs.cut + marker[1:])
        return value


def _strings(value: Any) -> Iterable[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
