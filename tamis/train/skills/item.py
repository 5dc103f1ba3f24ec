"""One question with its right answer, and what counts as right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tamis.train.chats.draw import Draw
from tamis.train.chats.render import Chat, ThinkingMode, ToolCall, Turn, messages_before_answer
from tamis.train.chats.split import held_out


@dataclass(frozen=True)
class SameText:
    """Right is this text; runs of white space count as one blank."""

    text: str


@dataclass(frozen=True)
class SameJson:
    """Right is an answer that is JSON of this value and nothing else."""

    value: Any


@dataclass(frozen=True)
class SameCalls:
    """Right is one tool-call block with these calls and nothing else; types follow the tools' schemas."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class PassesTests:
    """Right is Python, fenced or not, after which all these statements run without an error."""

    asserts: tuple[str, ...]


Check: TypeAlias = SameText | SameJson | SameCalls | PassesTests


@dataclass(frozen=True)
class Item:
    """One exchange that can be trained on or scored.

    Attributes:
        key: the problem in its canonical spelling, without wording: what `held_out` is asked. None for what everybody
            is to know by heart, as 3 + 4, and is never held out.
        chat: the conversation, which ends with the right answer.
        check: what other answers are right too.
        shown: keys of other problems whose right answers stand in the chat.
    """

    key: str | None
    chat: Chat
    check: Check
    shown: tuple[str, ...] = ()

    @property
    def held_out(self) -> bool:
        """Whether it is a test's, and never trained on."""
        return self.key is not None and held_out(self.key)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """OpenAI messages, without the answer."""
        return messages_before_answer(self.chat)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """OpenAI tool definitions, often none."""
        return self.chat.tools

    @property
    def thinking_mode(self) -> ThinkingMode | None:
        """The template's variable."""
        return self.chat.thinking_mode

    @property
    def answer(self) -> Turn:
        """The right answer."""
        return self.chat.turns[-1]


def exchange(question: str, answer: str, *, reasoning: str = "", developer: str = "") -> Chat:
    """One question and its answer; with reasoning, in the thinking mode that asks for it."""
    turns = (Turn("user", question), Turn("assistant", answer, reasoning))
    return Chat(turns, developer, "enabled" if reasoning else None)


def text_item(key: str | None, question: str, answer: str, *, reasoning: str = "") -> Item:
    """An item that is right when the text is."""
    return Item(key, exchange(question, answer, reasoning=reasoning), SameText(answer))


@dataclass(frozen=True)
class Skill:
    """A generator of items, split by content.

    Attributes:
        name: as scores are listed under.
        make: a draw to an item.
        parts: how often `mixture.skill_chat` draws it.
        max_tokens: room for an answer when scored.
    """

    name: str
    make: Callable[[Draw], Item]
    parts: float
    max_tokens: int = 64

    def train_item(self, draw: Draw) -> Item:
        """An item that holds no test problem."""
        return self._until(draw, lambda item: not item.held_out and not any(map(held_out, item.shown)))

    def test_item(self, draw: Draw) -> Item:
        """An item whose problem no training text holds."""
        return self._until(draw, lambda item: item.held_out)

    def _until(self, draw: Draw, is_wanted: Callable[[Item], bool]) -> Item:
        while True:
            item = self.make(draw)
            if is_wanted(item):
                return item
