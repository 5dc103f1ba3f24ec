"""Conversations as text in the chat format of `frontend/templates/minimax_m3.jinja`, byte for byte.

A template engine would take minutes for the half million conversations of a run; a test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["user", "assistant", "tool"]
ThinkingMode = Literal["enabled", "disabled", "adaptive"]

BEGIN = "]~!b["
TURN = "]~b]"
END = "[e~["
THINK = "<mm:think>"
NO_THINK = "</mm:think>"
NAMESPACE = "]<]minimax[>["
DEFAULT_ROOT = "You are a helpful assistant."

_MODE_LINES = {
    "enabled": "Thinking mode now: enabled. Think before every answer.",
    "disabled": "Thinking mode now: disabled. Do not think, answer at once.",
    "adaptive": "Thinking mode now: adaptive. Think when the question deserves it.",
}
_TOOLS_HEAD = "# Tools\nYou may call the tools below; each is described by JSON.\n<tools>\n"
_TOOLS_TAIL = (
    "</tools>\nTo call tools, write one block of this form, with one tag for each parameter:\n"
    f'{NAMESPACE}<tool_call>\n{NAMESPACE}<invoke name="tool">{NAMESPACE}<parameter>value{NAMESPACE}</parameter>'
    f"{NAMESPACE}</invoke>\n{NAMESPACE}</tool_call>"
)


@dataclass(frozen=True)
class ToolCall:
    """One call; `arguments` are JSON values by parameter, in the order in which they are written."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One message.

    Attributes:
        content: text; a tool's answer when `role` is "tool".
        reasoning: said before `content`, by the assistant only.
        tool_calls: made after `content`, by the assistant only.
    """

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Chat:
    """A conversation that ends with the assistant.

    Attributes:
        turns: user and assistant in alternation; tools answer between two turns of the assistant.
        developer: content of the system (or developer) message; "" for none.
        thinking_mode: None leaves it out, as a request that does not speak of it.
        tools: OpenAI tool definitions.
    """

    turns: tuple[Turn, ...]
    developer: str = ""
    thinking_mode: ThinkingMode | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


def messages_before_answer(chat: Chat) -> list[dict[str, Any]]:
    """OpenAI messages of everything but the last assistant turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": chat.developer}] if chat.developer else []
    for turn in chat.turns[:-1]:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in turn.tool_calls
            ]
        messages.append(message)
    return messages


def render_prompt(chat: Chat) -> str:
    """Everything before the last assistant turn's content, generation prompt included."""
    parts = [f"{BEGIN}{TURN}system\n{DEFAULT_ROOT}"]
    if chat.thinking_mode:
        parts.append(
            "\n\n<thinking_instructions>\nReasoning stands between <mm:think></mm:think> tags, before the answer. "
            f"An answer without reasoning starts after </mm:think>.\n{_MODE_LINES[chat.thinking_mode]}\n"
            "</thinking_instructions>"
        )
    parts.append(f"{END}\n")
    if chat.developer or chat.tools:
        between = "\n\n" if chat.developer and chat.tools else ""
        parts.append(f"{TURN}developer\n{chat.developer}{between}{_tools(chat.tools)}{END}\n")
    turns = chat.turns[:-1]
    last_user = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=-1)
    previous: Role | None = None
    for index, turn in enumerate(turns):
        if previous == "tool" and turn.role != "tool":
            parts.append(f"{END}\n")
        if turn.role == "user":
            parts.append(f"{TURN}user\n{turn.content}{END}\n")
        elif turn.role == "assistant":
            # Reasoning is shown only after the last user turn.
            reasoning = THINK + turn.reasoning if turn.reasoning and index > last_user else ""
            parts.append(f"{TURN}ai\n{reasoning}{NO_THINK}{_said(turn)}{END}\n")
        else:
            parts.append(f"{'' if previous == 'tool' else TURN + 'tool'}\n<response>{turn.content}</response>")
        previous = turn.role
    if previous == "tool":
        parts.append(f"{END}\n")
    parts.append(f"{TURN}ai\n" + {"enabled": THINK, "disabled": NO_THINK}.get(chat.thinking_mode or "", ""))
    return "".join(parts)


def render(chat: Chat) -> str:
    """The whole conversation, as the model should continue it: the prompt, the last answer and the end of turn.

    The last answer is what follows the generation prompt, so without a `</mm:think>` in front unless the mode wrote
    one or reasoning ends there.
    """
    last = chat.turns[-1]
    reasoning = ""
    if chat.thinking_mode == "enabled":
        reasoning = last.reasoning + NO_THINK
    elif last.reasoning and chat.thinking_mode == "adaptive":
        reasoning = THINK + last.reasoning + NO_THINK
    return f"{render_prompt(chat)}{reasoning}{_said(last)}{END}"


def render_tool_calls(calls: tuple[ToolCall, ...]) -> str:
    """The block that makes `calls`."""
    invokes = "".join(
        f'{NAMESPACE}<invoke name="{call.name}">{_value(call.arguments) if call.arguments else ""}{NAMESPACE}</invoke>\n'
        for call in calls
    )
    return f"{NAMESPACE}<tool_call>\n{invokes}{NAMESPACE}</tool_call>"


def _said(turn: Turn) -> str:
    if not turn.tool_calls:
        return turn.content
    return f"{turn.content}{chr(10) if turn.content else ''}{render_tool_calls(turn.tool_calls)}"


def _value(value: Any) -> str:
    """One value inside its parameter's tag: objects and lists become nested tags, text stays as it is."""
    if isinstance(value, Mapping) and value:
        return "".join(f"{NAMESPACE}<{key}>{_value(item)}{NAMESPACE}</{key}>" for key, item in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and value:
        return "".join(f"{NAMESPACE}<item>{_value(item)}{NAMESPACE}</item>" for item in value)
    return json.dumps(value, ensure_ascii=False)


def _tools(tools: tuple[Mapping[str, Any], ...]) -> str:
    if not tools:
        return ""
    lines = "".join(f"<tool>{json.dumps(tool.get('function', tool), ensure_ascii=False)}</tool>\n" for tool in tools)
    return f"{_TOOLS_HEAD}{lines}{_TOOLS_TAIL}"
