"""Right or wrong, by the check that an item carries."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tamis.bench.python_tests import passes
from tamis.bench.tool_block import NotAToolBlock, parse_tool_block
from tamis.train.chats.render import NO_THINK, THINK
from tamis.train.skills import Item, PassesTests, SameCalls, SameJson, SameText


@dataclass(frozen=True)
class Verdict:
    """What became of one answer.

    Attributes:
        right: by the item's check.
        is_valid_call: whether it is a tool-call block that fits the tools' schemas, right or not; None where no call
            was asked for.
        answer: the answer without reasoning.
    """

    right: bool
    is_valid_call: bool | None
    answer: str


def without_reasoning(text: str, *, enabled: bool) -> str:
    """The answer in a text that the model wrote.

    Args:
        enabled: whether the prompt had opened reasoning, so that all is reasoning up to the closing marker.
    """
    if enabled or text.startswith(THINK):
        return text.partition(NO_THINK)[2].strip()
    return text.removeprefix(NO_THINK).strip()


def judge(item: Item, text: str) -> Verdict:
    """Judge what the model wrote after the prompt of `item`."""
    answer = without_reasoning(text, enabled=item.thinking_mode == "enabled")
    check = item.check
    if isinstance(check, SameText):
        return Verdict(answer.split() == check.text.split(), None, answer)
    if isinstance(check, SameJson):
        try:
            # As text again: 1, 1.0 and true are equal in Python, not in JSON.
            same = json.dumps(json.loads(answer), sort_keys=True) == json.dumps(check.value, sort_keys=True)
        except (ValueError, RecursionError):
            same = False
        return Verdict(same, None, answer)
    if isinstance(check, SameCalls):
        try:
            calls = parse_tool_block(answer, item.tools)
        except (NotAToolBlock, RecursionError):
            return Verdict(False, False, answer)
        expected = [(call.name, dict(call.arguments)) for call in check.calls]
        return Verdict([(call.name, dict(call.arguments)) for call in calls] == expected, True, answer)
    assert isinstance(check, PassesTests)
    return Verdict(passes(answer, check.asserts), None, answer)
