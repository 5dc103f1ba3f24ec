"""The `tools` of a chat request: definitions that the template puts into the prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from tamis.errors import InvalidRequestError, UnsupportedError
from tamis.server.openai.fields import Refusal, check_object, show


class Tool(msgspec.Struct, kw_only=True):
    """An entry of `tools`."""

    type: str
    function: dict[str, Any]


class ToolFunction(msgspec.Struct, kw_only=True):
    """What the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


_FUNCTION_REFUSED = {
    "strict": Refusal("Structured output is not available; leave it out.", (False,)),
}


def check_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools as the template gets them: fields that were not set are left out, an empty list is None.

    Raises:
        InvalidRequestError: a tool without a function or a name, an unknown key.
        UnsupportedError: a tool that is not a function; `strict`.
    """
    return [_check_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or [])] or None


def _check_tool(value: dict[str, Any], path: str) -> dict[str, Any]:
    kind = value.get("type")
    if isinstance(kind, str) and kind != "function":
        raise UnsupportedError(
            f"{path}.type is {show(kind)}, which this server does not support.",
            param=f"{path}.type",
            hint="Use 'function'.",
        )
    tool = check_object(value, Tool, path=path + ".")
    function = check_object(tool.function, ToolFunction, refused=_FUNCTION_REFUSED, path=path + ".function.")
    if not function.name:
        raise InvalidRequestError(f"{path}.function.name is empty.", param=f"{path}.function.name")
    # In the client's order: the template may show the object as it stands.
    sent = {key: item for key, item in tool.function.items() if key in function.__struct_fields__ and item is not None}
    return {"type": tool.type, "function": sent}
