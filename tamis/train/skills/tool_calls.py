"""Requests with tools at hand: calls, answers from results, and questions that need no tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tamis.train.chats import facts
from tamis.train.chats.draw import Draw
from tamis.train.chats.render import Chat, ToolCall, Turn
from tamis.train.skills.arithmetic import two_numbers
from tamis.train.skills.item import Item, SameCalls, SameText
from tamis.train.skills.toolbox import TOOLS, Tool, definition, said

NO_TOOL = "I have no tool for that."


@dataclass(frozen=True)
class _Request:
    """A tool under drawn names, and a request for it in words."""

    tool: Tool
    definition: Mapping[str, Any]
    text: str
    call: ToolCall
    values: tuple[Any, ...]

    @property
    def key(self) -> str:
        """The tool and its values, whatever it is called and however it is asked for."""
        return f"call {self.tool.names[0]} {json.dumps(self.values)}"


def _request(draw: Draw, tool: Tool) -> _Request:
    names: list[str] = []
    for parameter in tool.parameters:
        names.append(draw.one([name for name in parameter.names if name not in names]))
    name = draw.one(tool.names)
    values = [parameter.value(draw) for parameter in tool.parameters]
    text = draw.say(tool.request)
    if tool.optional:
        if draw.chance(0.6):
            text += tool.optional
        else:
            values.pop()
    for index, value in enumerate(values):
        text = text.replace("{" + str(index) + "}", said(value))
    text += "?" if text.startswith(("What", "How")) else draw.one((".", "", ", please."))
    arguments = dict(zip(names, values, strict=False))
    return _Request(tool, definition(name, tool, names), text, ToolCall(name, arguments), tuple(values))


def _with_others(draw: Draw, one: _Request) -> tuple[Mapping[str, Any], ...]:
    """Its definition among up to two others, in random order."""
    others = [tool for tool in draw.some(TOOLS, 3) if tool is not one.tool][: draw.number(0, 2)]
    tools = [one.definition, *(_request(draw, other).definition for other in others)]
    draw.random.shuffle(tools)
    return tuple(tools)


def tool_call(draw: Draw) -> Item:
    """One to three tools; the right one is to be called with the values of the request."""
    one = _request(draw, draw.one(TOOLS))
    turns = (Turn("user", one.text), Turn("assistant", "", tool_calls=(one.call,)))
    return Item(one.key, Chat(turns, tools=_with_others(draw, one)), SameCalls((one.call,)))


def tool_result(draw: Draw) -> Item:
    """A tool has answered; its answer is to be put into words."""
    one = _request(draw, draw.one(TOOLS))
    result = {field.names[0]: field.value(draw) for field in one.tool.results}
    reply = one.tool.reply
    for index, value in enumerate(one.values):
        reply = reply.replace("{" + str(index) + "}", said(value))
    for index, value in enumerate(result.values()):
        reply = reply.replace("{r" + str(index) + "}", said(value))
    turns = (
        Turn("user", one.text),
        Turn("assistant", "", tool_calls=(one.call,)),
        Turn("tool", json.dumps(result)),
        Turn("assistant", reply),
    )
    key = f"{one.key} {json.dumps(result)}"
    return Item(key, Chat(turns, tools=_with_others(draw, one)), SameText(reply), shown=(one.key,))


def no_tool(draw: Draw) -> Item:
    """Tools that do not help: a question is answered without one, a request for another tool is declined."""
    wanted, present = draw.some(TOOLS, 2)
    one = _request(draw, present)
    tools = [tool for tool in _with_others(draw, one) if tool["function"]["description"] != wanted.description]
    if draw.chance(0.5):
        asked = _request(draw, wanted)
        key: str | None = f"none for {asked.key}"
        question, answer = asked.text, NO_TOOL
    elif draw.chance(0.5):
        sum_item = two_numbers(draw)
        key, question, answer = sum_item.key, sum_item.chat.turns[0].content, sum_item.answer.content
    else:
        country, city, *_ = draw.one(facts.COUNTRIES)
        # The fact is to be known by heart; new is that the tools are left alone.
        key = f"none for capital {country} beside {' '.join(tool['function']['name'] for tool in tools)}"
        question, answer = f"What is the capital of {country}?", f"The capital of {country} is {city}."
    return Item(key, Chat((Turn("user", question), Turn("assistant", answer)), tools=tuple(tools)), SameText(answer))
