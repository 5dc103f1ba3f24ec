"""The strict reader of tool calls: it reads back what the template writes, and nothing that is not it."""

from __future__ import annotations

from typing import Any

import pytest

from tamis.bench.tool_block import NotAToolBlock, parse_tool_block
from tamis.train.chats import Draw
from tamis.train.chats.render import NAMESPACE as NS
from tamis.train.chats.render import ToolCall, render_tool_calls
from tamis.train.skills import SKILLS, SameCalls

ORDER = {
    "type": "function",
    "function": {
        "name": "order",
        "parameters": {
            "type": "object",
            "properties": {
                "item": {"type": "string"},
                "count": {"type": "integer"},
                "price": {"type": "number"},
                "gift": {"type": "boolean"},
                "size": {"type": "string", "enum": ["S", "L"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "to": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "zip": {"type": "array", "items": {"type": "integer"}}},
                },
            },
            "required": ["item"],
        },
    },
}
STOP = {"name": "stop"}


def call(inner: str, name: str = "order") -> str:
    return f'{NS}<tool_call>\n{NS}<invoke name="{name}">{inner}{NS}</invoke>\n{NS}</tool_call>'


def tag(name: str, value: object) -> str:
    return f"{NS}<{name}>{value}{NS}</{name}>"


def test_what_the_template_writes_is_read_back() -> None:
    everything: dict[str, Any] = {
        "item": "a <b> {c}\nd", "count": -3, "price": 2.5, "gift": True, "size": "L", "tags": ["x", "", "y z"],
        "to": {"city": "Ulm", "zip": [8, 9]},
    }  # fmt: skip
    calls = (ToolCall("order", everything), ToolCall("stop", {}), ToolCall("order", {"item": "", "price": 2}))

    found = parse_tool_block(f" {render_tool_calls(calls)}\n", [ORDER, STOP])

    assert [(c.name, dict(c.arguments)) for c in found] == [(c.name, dict(c.arguments)) for c in calls]


def test_the_skill_s_own_answers_are_valid() -> None:
    for seed in range(300):
        item = SKILLS["tool_call"].train_item(Draw(seed))
        assert isinstance(item.check, SameCalls)
        found = parse_tool_block(render_tool_calls(item.check.calls), item.tools)
        assert [(c.name, dict(c.arguments)) for c in found] == [(c.name, dict(c.arguments)) for c in item.check.calls]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with"),
        ("I call order.", "begins with"),
        (f"Well. {call(tag('item', 'a'))}", "begins with"),
        (call(tag("item", "a")) + " Done.", "tool_call"),
        (call(tag("item", "a")) + NS, "after the block"),
        (f"{NS}<tool_call>\n{NS}</tool_call>", "calls nothing"),
        (call(tag("item", "a")).removesuffix(f"{NS}</tool_call>"), "stands where"),
        (call(tag("item", "a"))[:-30], "stands where"),
        (call(tag("item", "a"), name="buy"), "no tool 'buy'"),
        (call(tag("colour", "a")), "order.colour is in no schema"),
        (call(tag("count", 3)), "lacks item"),
        (call(tag("item", "a")).partition("</item>")[0], "stands where"),
        (f'{NS}<tool_call>\n{NS}<invoke name="order">', "ends inside"),
        (call(tag("item", "a") + tag("item", "b")), "stands twice"),
        (call(tag("item", "a") + tag("count", "three")), "no integer"),
        (call(tag("item", "a") + tag("count", "3.0")), "no integer"),
        (call(tag("item", "a") + tag("count", "true")), "no integer"),
        (call(tag("item", "a") + tag("price", "NaN €")), "no number"),
        (call(tag("item", "a") + tag("gift", 1)), "no boolean"),
        (call(tag("item", "a") + tag("size", "M")), "none of"),
        (call(tag("item", tag("item", "a"))), "stands where '</item>'"),
        (call(tag("item", "a") + tag("tags", tag("tag", "x"))), "in no schema"),
        (call(tag("item", "a") + tag("tags", "x" + tag("item", "y"))), "mixes text and tags"),
        (call(f"{NS}<item>a{NS}</items>"), "</items>"),
        (call(tag("item", "a") + "and"), "stands where"),
        (call(tag("item", "a")).replace(">\n", ">"), "stands where"),
    ],
)
def test_anything_else_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(NotAToolBlock, match=reason):
        parse_tool_block(text, [ORDER, STOP])
