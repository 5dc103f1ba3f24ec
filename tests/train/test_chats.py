"""Generated chats: the served template's bytes, no loose slots, right answers."""

from __future__ import annotations

import re

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tamis.train.chats import SKILLS, Chat, Draw, Turn, conversation, maths, render, render_prompt
from tamis.train.chats.code import function
from tamis.train.export import TEMPLATE


def test_prompts_are_what_the_template_renders() -> None:
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        TEMPLATE.read_text(encoding="utf-8")
    )
    modes = set()
    for seed in range(400):
        chat = conversation(Draw(seed))
        messages = [{"role": turn.role, "content": turn.content} for turn in chat.turns[:-1]]
        if chat.developer:
            messages.insert(0, {"role": "system", "content": chat.developer})
        mode = {"thinking_mode": chat.thinking_mode} if chat.thinking_mode else {}
        assert render_prompt(chat) == template.render(messages=messages, add_generation_prompt=True, **mode)
        modes.add((bool(chat.developer), chat.thinking_mode))
    assert len(modes) >= 7


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
    for seed in range(2000):
        _, _, reasoning = maths.arithmetic(Draw(seed))
        left, right = reasoning.rstrip(".").split(" = ")
        a, sign, b = re.fullmatch(r"(\d+) (.*) (\d+)", left).groups()  # type: ignore[union-attr]
        result = {
            "+": int(a) + int(b), "plus": int(a) + int(b), "-": int(a) - int(b), "minus": int(a) - int(b),
            "/": int(a) // int(b) if int(b) else 0, "divided by": int(a) // int(b) if int(b) else 0,
        }.get(sign, int(a) * int(b))  # fmt: skip
        assert result == int(right)
        if sign in ("+", "plus"):
            assert not maths.held_out(int(a), int(b))
    scored = [maths.arithmetic(Draw(seed), testing=True)[2].rstrip(".").split(" = ")[0] for seed in range(200)]
    assert all(maths.held_out(*map(int, re.findall(r"\d+", left))) for left in scored)


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
