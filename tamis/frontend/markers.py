"""Keeps the model's markers out of what users write.

A message that contains `[e~[` must reach the model as those four characters, not as the end of the turn. So a
sentinel is put inside every marker of every message before the template sees it; the rendered prompt is cut at the
sentinels, and each piece is tokenised by itself. Joined, the pieces are the text as written, and no piece holds a
marker that the template did not write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tamis.errors import InvalidRequestError

# Reasoning and tool markers are what the model itself writes and system prompts speak of; in those roles they count.
MODEL_MARKERS = frozenset({"<mm:think>", "</mm:think>", "]<]minimax[>["})
DATA_ROLES = frozenset({"user", "tool"})

# Unicode's noncharacters "for internal use": no text should hold one, but a hostile one may.
_SENTINELS = tuple(chr(c) for c in range(0xFDD0, 0xFDF0))


class MarkerGuard:
    """Breaks markers in messages.

    Args:
        markers: text of every added token of the vocabulary. One of a single character cannot be broken and counts.
    """

    def __init__(self, markers: Iterable[str]) -> None:
        self._in_data = sorted(marker for marker in markers if len(marker) > 1)
        self._in_trusted = [marker for marker in self._in_data if marker not in MODEL_MARKERS]

    def choose_sentinel(self, messages: Any) -> str:
        """A character that occurs nowhere in `messages`."""
        texts = list(_strings(messages))
        for sentinel in _SENTINELS:
            if not any(sentinel in text for text in texts):
                return sentinel
        raise InvalidRequestError(
            "messages hold every noncharacter from U+FDD0 to U+FDEF, which leaves none to separate text from markers.",
            param="messages",
            hint="Remove them: they stand for no character.",
        )

    def protect(self, message: Mapping[str, Any], sentinel: str) -> dict[str, Any]:
        """A copy of `message` with the sentinel inside each marker that its role may not write."""
        markers = self._in_data if message.get("role") in DATA_ROLES else self._in_trusted
        return {key: _broken(value, markers, sentinel) for key, value in message.items()}

    def protect_tool(self, tool: Mapping[str, Any], sentinel: str) -> dict[str, Any]:
        """The same for a tool's definition."""
        return {key: _broken(value, self._in_data, sentinel) for key, value in tool.items()}


def _broken(value: Any, markers: list[str], sentinel: str) -> Any:
    if isinstance(value, str):
        for marker in markers:
            # More than one pass only where a marker overlaps itself, as in `]~b]~b]`.
            while marker in value:
                value = value.replace(marker, marker[0] + sentinel + marker[1:])
        return value
    if isinstance(value, Mapping):
        return {_broken(k, markers, sentinel): _broken(v, markers, sentinel) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_broken(v, markers, sentinel) for v in value]
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
