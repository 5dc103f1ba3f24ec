"""Right and wrong answers, of each kind of check."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tamis.bench.judge import judge, without_reasoning
from tamis.bench.python_tests import passes
from tamis.train.chats import Draw
from tamis.train.chats.render import NO_THINK, THINK, render_tool_calls
from tamis.train.skills import SKILLS, Item


def right_text(item: Item) -> str:
    """What a model that knows the answer writes after the prompt."""
    answer = item.answer
    said = answer.content or render_tool_calls(answer.tool_calls)
    return f"{answer.reasoning}{NO_THINK}{said}" if item.thinking_mode == "enabled" else said


@pytest.mark.parametrize("name", SKILLS)
def test_the_given_answer_is_right_and_another_one_wrong(name: str) -> None:
    skill = SKILLS[name]
    wrong = 0
    for seed in range(6):
        item, other = skill.test_item(Draw(seed)), skill.test_item(Draw(seed + 1000))
        verdict = judge(item, right_text(item))
        assert verdict.right and verdict.is_valid_call in (None, True)
        # Other problems may have the same answer by chance.
        wrong += not judge(item, right_text(other)).right
        assert not judge(item, "").right
    assert wrong >= 3


@pytest.mark.parametrize(
    ("text", "enabled", "answer"),
    [
        ("4", False, "4"),
        (f"{NO_THINK}4 ", False, "4"),
        (f"{THINK}two{NO_THINK}\n4", False, "4"),
        (f"two{NO_THINK}4", True, "4"),
        ("two and two is 4", True, ""),
        (f"4{NO_THINK}5", False, f"4{NO_THINK}5"),
    ],
    ids=["plain", "stray close", "own reasoning", "opened by the prompt", "never closed", "close inside"],
)
def test_reasoning_is_no_part_of_the_answer(text: str, enabled: bool, answer: str) -> None:
    assert without_reasoning(text, enabled=enabled) == answer


def test_text_is_compared_but_for_white_space() -> None:
    item = SKILLS["counting"].test_item(Draw(1))
    assert judge(item, f"  {item.answer.content.replace(' ', '  ')}\n").right
    assert not judge(item, item.answer.content + " Yes.").right
    assert not judge(item, item.answer.content.upper()).right


def test_json_is_compared_as_a_value() -> None:
    item = next(
        i for i in map(SKILLS["json_extraction"].test_item, map(Draw, range(99))) if "price" in i.answer.content
    )
    text = item.answer.content
    assert judge(item, text.replace(", ", ",\n  ")).right
    assert not judge(item, f"Here it is: {text}").right
    assert not judge(item, text.replace('"price": ', '"price": 1')).right
    assert not judge(item, "[" * 100_000).right


def test_a_call_may_be_valid_and_wrong() -> None:
    item = next(i for i in map(SKILLS["tool_call"].test_item, map(Draw, range(99))) if "ity" in str(i.check))
    call = item.answer.tool_calls[0]
    changed = {
        k: "Nowhere" if isinstance(v, str) and len(call.arguments) == 1 else v for k, v in call.arguments.items()
    }
    verdict = judge(item, render_tool_calls((replace(call, arguments=changed), call)))
    assert (verdict.right, verdict.is_valid_call) == (False, True)
    assert judge(item, render_tool_calls((replace(call, name="another"),))).is_valid_call is False


@pytest.mark.parametrize(
    "answer",
    [
        "def f(x):\n    return x - 1",
        "def f(x:\n    return x",
        "",
        "import socket\ndef f(x):\n    return x + 1",
        "open('/etc/hostname').read()\ndef f(x):\n    return x + 1",
        "import os\nos.system('true')\ndef f(x):\n    return x + 1",
        "print('passed')\nraise SystemExit(0)",
        "x = [0] * 10**12",
        "while True:\n    print('x' * 10**6)",
        "\ud800 \0",
    ],
    ids=["wrong", "syntax", "empty", "network", "file", "process", "leaves early", "memory", "output", "no text"],
)
def test_wrong_and_unfriendly_programs_do_not_pass(answer: str) -> None:
    assert not passes(answer, ["assert f(1) == 2"])


def test_right_programs_pass_fenced_or_not() -> None:
    source = "import re, math\ndef f(x):\n    return int(math.sqrt(x * x)) + len(re.findall('a', 'a'))\n"
    for answer in (source, f"```python\n{source}```", f"Here it is:\n```python\n{source}```\nDone."):
        assert passes(answer, ["assert f(1) == 2", "assert f(5) == 6"])
