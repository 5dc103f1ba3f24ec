"""Generated chats: the served template's bytes, no loose slots, right answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tamis.frontend.sandbox import sandbox
from tamis.train.chats import SKILLS, Chat, Draw, Turn, conversation, maths, render, render_prompt
from tamis.train.chats.code import function
from tamis.train.chats.render import ToolCall, messages_before_answer
from tamis.train.chats.split import held_out, held_out_operation
from tamis.train.export import TEMPLATE
from tamis.train.skills import skill_chat


def template() -> Any:
    return sandbox().from_string(TEMPLATE.read_text(encoding="utf-8"))


def served(chat: Chat, rendered_by: Any) -> str:
    """The prompt of `chat` as the served template writes it."""
    mode = {"thinking_mode": chat.thinking_mode} if chat.thinking_mode else {}
    return str(
        rendered_by.render(
            messages=messages_before_answer(chat), tools=list(chat.tools), add_generation_prompt=True, **mode
        )
    )


@pytest.mark.parametrize("make", [conversation, skill_chat], ids=["conversation", "skills"])
def test_prompts_are_what_the_template_renders(make: Callable[[Draw], Chat]) -> None:
    rendered_by = template()
    kinds = set()
    for seed in range(400):
        chat = make(Draw(seed))
        assert render_prompt(chat) == served(chat, rendered_by)
        kinds.add((bool(chat.developer), bool(chat.tools), chat.thinking_mode))
    assert len(kinds) >= 7


CALLS = (
    ToolCall(
        "order", {"items": ["a", "b"], "of": {"name": "é", "empty": {}, "none": None}, "deep": [{"x": 1.5}, [True]]}
    ),
    ToolCall("stop", {}),
)
TOOLS = (
    {"type": "function", "function": {"name": "order", "description": "Ärger <b>", "parameters": {"type": "object"}}},
    {"name": "stop"},
)


@pytest.mark.parametrize("developer", ["", "Be brief."], ids=["no system message", "system message"])
@pytest.mark.parametrize("mode", [None, "enabled", "adaptive"])
def test_tools_calls_and_results_are_what_the_template_renders(developer: str, mode: Any) -> None:
    turns = (
        Turn("user", "One"),
        Turn("assistant", "Before.", "not shown", tool_calls=CALLS[:1]),
        Turn("tool", "{}"),
        Turn("assistant", "First."),
        Turn("user", "Two"),
        Turn("assistant", "", "shown", tool_calls=CALLS),
        Turn("tool", '{"a": 1}'),
        Turn("tool", "second"),
        Turn("assistant", "Last."),
    )
    for length in (2, 4, 6, 9):
        chat = Chat(turns[:length], developer, mode, TOOLS)
        assert render_prompt(chat) == served(chat, template())
    # What is trained as an answer is what the template later writes as one.
    whole = Chat((*turns[:6], Turn("user", "Three"), Turn("assistant", "")), developer, None, TOOLS)
    said = render(Chat(turns[:6], developer, None, TOOLS)).removeprefix(
        render_prompt(Chat(turns[:6], developer, None, TOOLS))
    )
    assert f"]~b]ai\n</mm:think>{said}\n]~b]user\nThree" in served(whole, template())


def test_the_last_answer_follows_the_prompt() -> None:
    turns = (Turn("user", "2 + 2?"), Turn("assistant", "4.", "Easy."))
    assert render(Chat(turns)).endswith("[e~[\n]~b]ai\n4.[e~[")
    assert render(Chat(turns, thinking_mode="disabled")).endswith("]~b]ai\n</mm:think>4.[e~[")
    assert render(Chat(turns, thinking_mode="enabled")).endswith("]~b]ai\n<mm:think>Easy.</mm:think>4.[e~[")


def test_a_chat_follows_from_its_seed() -> None:
    assert [conversation(Draw(seed)) for seed in range(50)] == [conversation(Draw(seed)) for seed in range(50)]
    assert len({render(conversation(Draw(seed))) for seed in range(500)}) > 480


@pytest.mark.parametrize("name", SKILLS)
def test_no_slot_stays_open(name: str) -> None:
    for seed in range(200):
        question, answer = SKILLS[name][0](Draw(seed))
        assert question.strip() and answer.strip()
        for text in (question, answer):
            assert not re.search(r"\{[a-z0-9]\}|\|\]|\[\|", text), text


def test_sums_are_right_and_the_scored_ones_unseen() -> None:
    operations = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
    for seed in range(2000):
        _, answer, reasoning = maths.arithmetic(Draw(seed))
        a, sign, b, result = re.fullmatch(r"(\d+) (.) (\d+) = (\d+)", answer).groups()  # type: ignore[union-attr]
        assert operations[sign](int(a), int(b)) == int(result) and reasoning == f"{answer}."
        assert not held_out_operation(sign, int(a), int(b))


def test_lists_to_sort_or_count_are_no_test_problems() -> None:
    for seed in range(3000):
        for question, answer in (SKILLS["sort_things"][0](Draw(seed)), SKILLS["pick"][0](Draw(seed))):
            given = re.findall(r"\w+", question.split(": ")[-1]) if ": " in question else []
            if question.startswith("How many words are in this list"):
                assert answer == f"There are {len(given)} words." and not held_out(f"length {' '.join(given)}")
            elif "ort" in question or "rder" in question:
                assert sorted(given) == sorted(answer.split(", "))
                assert not held_out(f"sort {' '.join(sorted(given))}")


def test_functions_compile_and_do_what_they_say() -> None:
    cases = {
        "add": ((2, 5), 7), "is_prime": ((7,), True), "gcd": ((12, 18), 6), "is_palindrome": (("anna",), True),
        "fib": ((10,), 55), "bubble_sort": (([3, 1, 2],), [1, 2, 3]), "clamp": ((9, 0, 5), 5),
        "linear_search": (([4, 5], 5), 1), "sum_digits": ((123,), 6), "factorial": ((5,), 120),
    }  # fmt: skip
    met = set()
    for seed in range(3000):
        one = function(Draw(seed))
        scope: dict[str, object] = {}
        exec(compile(one.source, one.name, "exec"), scope)
        if one.name in cases:
            arguments, expected = cases[one.name]
            assert scope[one.name](*arguments) == expected, one.source  # type: ignore[operator]
            met.add(one.name)
    assert met == set(cases)
