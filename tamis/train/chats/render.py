"""Conversations as text in the chat format of `frontend/templates/minimax_m3.jinja`, byte for byte.

A template engine would take minutes for the half million conversations of a run; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant"]
ThinkingMode = Literal["enabled", "disabled", "adaptive"]

BEGIN = "]~!b["
TURN = "]~b]"
END = "[e~["
THINK = "<mm:think>"
NO_THINK = "</mm:think>"
DEFAULT_ROOT = "You are a helpful assistant."

_MODE_LINES = {
    "enabled": "Thinking mode now: enabled. Think before every answer.",
    "disabled": "Thinking mode now: disabled. Do not think, answer at once.",
    "adaptive": "Thinking mode now: adaptive. Think when the question deserves it.",
}


@dataclass(frozen=True)
class Turn:
    """One message; `reasoning` is said before `content`, by the assistant only."""

    role: Role
    content: str
    reasoning: str = ""


@dataclass(frozen=True)
class Chat:
    """A conversation that ends with the assistant.

    Attributes:
        turns: user and assistant in alternation.
        developer: content of the system (or developer) message; "" for none.
        thinking_mode: None leaves it out, as a request that does not speak of it.
    """

    turns: tuple[Turn, ...]
    developer: str = ""
    thinking_mode: ThinkingMode | None = None


def render_prompt(chat: Chat) -> str:
    """Everything before the last assistant turn's content, generation prompt included."""
    text = f"{BEGIN}{TURN}system\n{DEFAULT_ROOT}"
    if chat.thinking_mode:
        text += (
            "\n\n<thinking_instructions>\nReasoning stands between <mm:think></mm:think> tags, before the answer. "
            f"An answer without reasoning starts after </mm:think>.\n{_MODE_LINES[chat.thinking_mode]}\n"
            "</thinking_instructions>"
        )
    text += f"{END}\n"
    if chat.developer:
        text += f"{TURN}developer\n{chat.developer}{END}\n"
    for turn in chat.turns[:-1]:
        # Reasoning of earlier turns is not shown.
        opening = f"{TURN}user\n" if turn.role == "user" else f"{TURN}ai\n{NO_THINK}"
        text += f"{opening}{turn.content}{END}\n"
    return text + f"{TURN}ai\n" + {"enabled": THINK, "disabled": NO_THINK}.get(chat.thinking_mode or "", "")


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
    return f"{render_prompt(chat)}{reasoning}{last.content}{END}"
