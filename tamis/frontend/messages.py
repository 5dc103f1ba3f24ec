"""OpenAI messages as the chat template wants them: content one string, tool arguments one object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tamis.errors import InvalidRequestError, UnsupportedError


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages with text parts joined and tool-call arguments parsed.

    Content may be a string, a list of `{"type": "text", "text": …}` parts (joined without a separator, as the
    family's own template does), or None for an assistant that only calls tools. None fields are left out.

    Raises:
        InvalidRequestError: no messages, a message without role or content, or malformed tool calls; names the place.
        UnsupportedError: a content part that is not text.
    """
    if not messages:
        raise InvalidRequestError("messages is [], but needs at least one message.", param="messages")
    return [_normalize(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalize(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} is {message!r}, but must be an object.", param=where)
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequestError(
            f"{where}.role is {role!r}, but must be system, developer, user, assistant or tool.", param=f"{where}.role"
        )
    normal = {key: value for key, value in message.items() if value is not None}
    if normal.get("tool_calls"):
        normal["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(normal["tool_calls"])
        ]
    elif "content" not in normal:
        raise InvalidRequestError(
            f"{where}.content is missing, but a message needs text"
            + (" or tool_calls." if role == "assistant" else "."),
            param=f"{where}.content",
        )
    normal["content"] = _text(normal.get("content", ""), f"{where}.content")
    return normal


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"{where} is {content!r}, but must be a string or a list of parts.", param=where)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is not None and kind != "text":
            raise UnsupportedError(
                f"{where}[{i}].type is {kind!r}, but this server reads text only.",
                param=f"{where}[{i}].type",
                hint="Send parts of type 'text'.",
            )
        if kind is None or not isinstance(part.get("text"), str):
            raise InvalidRequestError(
                f"{where}[{i}] is {part!r}, but must be an object with type 'text' and a string text.",
                param=f"{where}[{i}]",
            )
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f"{where} needs a function with a name.", param=where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"{where}.function.arguments is not valid JSON: {error}.", param=f"{where}.function.arguments"
            ) from error
    if not isinstance(arguments, Mapping):
        raise InvalidRequestError(
            f"{where}.function.arguments is a JSON {type(arguments).__name__}, but must be an object.",
            param=f"{where}.function.arguments",
        )
    return {**call, "function": {**function, "arguments": arguments}}
