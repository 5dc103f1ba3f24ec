"""The `messages` of a chat request: every role, part and key checked, so that the template meets only what it knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tamis.errors import InvalidRequestError, UnsupportedError
from tamis.server.body import parse_json_object
from tamis.server.openai.fields import Refusal, check_object, show

ROLES = ("root", "system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 4096


class Message(msgspec.Struct, kw_only=True):
    """One message. `root` is this model family's outermost system message; it can only come first.

    `tool_call_id` is a label: results follow their calls in order. `name` is for templates that show it.
    """

    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class TextPart(msgspec.Struct, kw_only=True):
    """A part of a message's content."""

    type: str
    text: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call that the model made in an earlier turn; `id` and `index` are labels."""

    function: dict[str, Any]
    id: str | None = None
    type: str = "function"
    index: int | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """Name and arguments of a call; the arguments are JSON text, as the API returned them."""

    name: str
    arguments: str = "{}"


# Clients send the assistant's messages back as they got them, empty fields included.
_MESSAGE_REFUSED = {
    "annotations": Refusal("Leave it out.", ([],)),
    "audio": Refusal("This model takes and gives text."),
    "function_call": Refusal("Use tool_calls."),
    "refusal": Refusal("Put the text into content."),
    "prefix": Refusal("Use continue_final_message.", (False,)),
}


def check_messages(messages: list[Any], *, continue_final_message: bool) -> list[dict[str, Any]]:
    """The messages as the template gets them: fields that were not set are left out.

    Raises:
        InvalidRequestError: no message, an unknown role or key, content of the wrong kind.
        UnsupportedError: content parts other than text.
    """
    if not messages:
        raise InvalidRequestError("messages is empty.", param="messages", hint="Send at least one message.")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"messages has {len(messages)} entries, but at most {MAX_MESSAGES} are accepted.", param="messages"
        )
    checked = [_check_message(message, f"messages[{i}]", first=i == 0) for i, message in enumerate(messages)]
    if continue_final_message and checked[-1]["role"] != "assistant":
        raise InvalidRequestError(
            f"continue_final_message is true, but the last message is of role {checked[-1]['role']!r}.",
            param="continue_final_message",
            hint="End messages with the assistant message to continue.",
        )
    return checked


def _check_message(value: Any, path: str, *, first: bool) -> dict[str, Any]:
    message = check_object(_object(value, path), Message, refused=_MESSAGE_REFUSED, path=path + ".")
    if message.role not in ROLES:
        raise InvalidRequestError(
            f"{path}.role is {show(message.role)}, but must be one of {', '.join(ROLES)}.", param=f"{path}.role"
        )
    if message.role == "root" and not first:
        raise InvalidRequestError(f"{path}.role is 'root', but only the first message can be.", param=f"{path}.role")
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise InvalidRequestError(
            f"{path}.content is missing.",
            param=f"{path}.content",
            code="missing_required_parameter",
            hint="Only an assistant message with tool_calls may leave it out.",
        )
    if message.role != "assistant":
        for name in ("tool_calls", "reasoning_content", "reasoning"):
            if getattr(message, name):
                raise InvalidRequestError(
                    f"{path}.{name} is set, but the role is {message.role!r}.",
                    param=f"{path}.{name}",
                    hint="Only an assistant message has it.",
                )
    if isinstance(message.content, list):
        message.content = [_check_part(part, f"{path}.content[{i}]") for i, part in enumerate(message.content)]
    message.tool_calls = [_check_tool_call(c, f"{path}.tool_calls[{i}]") for i, c in enumerate(message.tool_calls)]
    fields = msgspec.structs.asdict(message)
    return {name: item for name, item in fields.items() if name == "content" or item not in (None, [])}


def _check_part(value: Any, path: str) -> dict[str, Any]:
    part = _object(value, path)
    kind = part.get("type")
    if isinstance(kind, str) and kind != "text":
        raise UnsupportedError(
            f"{path}.type is {show(kind)}, but this model takes text only.",
            param=f"{path}.type",
            hint="Send parts of type 'text'.",
        )
    return msgspec.structs.asdict(check_object(part, TextPart, path=path + "."))


def _check_tool_call(value: Any, path: str) -> dict[str, Any]:
    call = check_object(_object(value, path), ToolCall, path=path + ".")
    if call.type != "function":
        raise UnsupportedError(
            f"{path}.type is {show(call.type)}, which this server does not support.",
            param=f"{path}.type",
            hint="Use 'function'.",
        )
    function = check_object(call.function, FunctionCall, path=path + ".function.")
    try:
        parse_json_object(function.arguments.encode() or b"{}")
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"{path}.function.arguments: {error.message.replace('The body', 'the text')}",
            param=f"{path}.function.arguments",
            hint="Send the call's arguments as JSON text of an object.",
        ) from None
    checked: dict[str, Any] = {"type": "function", "function": msgspec.structs.asdict(function)}
    return checked if call.id is None else {"id": call.id, **checked}


async def check_names(
    messages: list[dict[str, Any]],
    prompt: list[int],
    encode: Callable[[list[dict[str, Any]]], Awaitable[list[int]]],
) -> None:
    """Refuse names of messages that the template does not show, which is when `prompt` is the same without them.

    A tool result's name only repeats what its call was: a label, as `tool_call_id` is, and many clients send it.

    Args:
        messages: as `check_messages` returned them.
        prompt: their token ids.
        encode: from messages to token ids, as `prompt` was made.

    Raises:
        UnsupportedError: the prompt does not depend on the names in messages of some role.
    """
    named = [(i, message["role"]) for i, message in enumerate(messages) if "name" in message]
    first_named = {role: i for i, role in reversed(named) if role != "tool"}
    for role, first in first_named.items():
        nameless = [
            {key: item for key, item in message.items() if key != "name" or message["role"] != role}
            for message in messages
        ]
        try:
            is_shown = await encode(nameless) != prompt
        except InvalidRequestError:  # from a template that insists on names
            is_shown = True
        if not is_shown:
            raise UnsupportedError(
                f"messages[{first}].name is {show(messages[first]['name'])}, but this model's template does not show "
                f"the names of messages of role {role!r}.",
                param=f"messages[{first}].name",
                hint="Put the name into the content, or leave it out.",
            )


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{path} is {show(value)}, but must be an object.", param=path, code="invalid_type")
    return value
