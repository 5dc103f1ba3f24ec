"""Skills: right answers, one wording an answer, and no test problem in any training text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tamis.train.chats import Draw, conversation, render
from tamis.train.chats.render import Turn
from tamis.train.skills import (
    SKILLS,
    Item,
    PassesTests,
    SameCalls,
    SameJson,
    SameText,
    needle_document,
    needle_filler,
    needle_text,
    random_document,
    skill_chat,
    skill_text,
)
from tamis.train.skills.arithmetic import borrow, carry
from tamis.train.skills.needles import is_test_key

FACT = re.compile(r"The (\w+) of the (\w+) (\w+) is (\w+)\.")
FILLER = needle_filler(
    [f"A paragraph of running text, number {i}, that says nothing of any use." for i in range(9)],
    ["".join(f"def f_{i}(x):\n    return x + {i}\n\n" for i in range(99))],
    num_stories=9,
)


def items(name: str, count: int, *, testing: bool) -> Iterator[Item]:
    make = SKILLS[name].test_item if testing else SKILLS[name].train_item
    return (make(Draw(seed)) for seed in range(count))


@pytest.mark.parametrize("name", SKILLS)
def test_no_test_problem_is_trained_on(name: str) -> None:
    tested = {item.key for item in items(name, 60, testing=True)}
    trained = {item.key for item in items(name, 1500, testing=False)}
    assert len(tested) > 15 and None not in tested
    assert not tested & trained


def test_no_training_text_holds_a_test_problem_of_another_skill() -> None:
    """Sums stand in rules, in tools and in free chats too: what is held out is held out everywhere."""
    sums = {
        tuple(sorted(map(int, re.findall(r"\d+", item.answer.content)[:2])))
        for item in items("arithmetic", 150, testing=True)
        if " + " in item.answer.content
    }
    texts = [skill_text(Draw(seed)) for seed in range(3000)]
    texts += [render(conversation(Draw(seed))) for seed in range(3000)]
    found = [tuple(sorted(map(int, pair))) for text in texts for pair in re.findall(r"(\d+) \+ (\d+) = \d", text)]
    assert len(sums) > 30 and len(found) > 500
    assert not sums & set(found)


def test_no_call_that_tests_ask_for_stands_in_a_training_text() -> None:
    """A call is made in the texts about its result too."""

    def calls(name: str, count: int, *, testing: bool) -> set[str]:
        # Names of tools and parameters are drawn: a problem is its wording with its values.
        found = set()
        for item in items(name, count, testing=testing):
            call = next(turn.tool_calls[0] for turn in item.chat.turns if turn.tool_calls)
            found.add(
                f"{item.messages[0]['content'].strip(' .?').removesuffix(', please')} {list(call.arguments.values())}"
            )
        return found

    tested = calls("tool_call", 600, testing=True)
    trained = calls("tool_result", 6000, testing=False)
    assert len(tested) > 200 and len(trained) > 3000
    assert not tested & trained


@pytest.mark.parametrize("name", SKILLS)
def test_the_given_answer_is_the_checked_one(name: str) -> None:
    for item in items(name, 100, testing=False):
        answer, check = item.answer, item.check
        assert isinstance(answer, Turn) and answer.role == "assistant"
        assert not re.search(r"\{[a-z]?\d?\}|\[[^\]]*\|", item.messages[-1]["content"]), item.messages
        if isinstance(check, SameText):
            assert check.text == answer.content
        elif isinstance(check, SameJson):
            assert json.loads(answer.content) == check.value
        elif isinstance(check, SameCalls):
            assert check.calls == answer.tool_calls
        else:
            scope: dict[str, Any] = {}
            exec(re.fullmatch(r"```python\n(.*)```", answer.content, re.DOTALL)[1], scope)  # type: ignore[index]
            for statement in check.asserts:
                exec(statement, scope)


def test_a_function_s_tests_tell_it_from_another() -> None:
    """What passes a problem's tests is seldom another problem's solution."""
    problems = list(items("python_function", 40, testing=False))
    passed = 0
    for i, item in enumerate(problems):
        assert isinstance(item.check, PassesTests)
        other = problems[i - 1].answer.content.removeprefix("```python\n").removesuffix("```")
        name = re.match(r"def (\w+)", item.answer.content.removeprefix("```python\n"))[1]  # type: ignore[index]
        scope: dict[str, Any] = {}
        exec(re.sub(r"def \w+", f"def {name}", other), scope)
        try:
            for statement in item.check.asserts:
                exec(statement, scope)
        except Exception:  # any error is a failed test
            continue
        passed += 1
    assert passed <= 2


def test_sums_and_lists_are_right() -> None:
    operations = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    for item in items("arithmetic", 300, testing=False):
        a, sign, b, result = re.fullmatch(r"(\d+) (.) (\d+) = (\d+)", item.answer.content).groups()  # type: ignore[union-attr]
        assert operations[sign](int(a), int(b)) == int(result)
    for item in items("sorting", 300, testing=False):
        question, answer = item.messages[-1]["content"], item.answer.content.split(", ")
        given = question.split(": ")[-1].split(", ")
        assert 4 <= len(given) <= 8 and sorted(given) == sorted(answer)
        ordered = [int(x) if x.isdigit() else x for x in answer]
        down = "descending" in question or "large to" in question or "z to" in question
        assert ordered == sorted(ordered, reverse=down)  # type: ignore[type-var]
    for item in items("counting", 300, testing=False):
        question = item.messages[-1]["content"]
        words = re.findall(r"\w+", question.split(": ")[1])
        asked = re.search(r"(?:does|word) (\w+) (?:stand|is)|word (\w+)", question)
        count = int(re.findall(r"\d+", item.answer.content)[0])
        word = next((w for w in asked.groups() if w), None) if asked else None
        assert count == (words.count(word) if word and not question.startswith("Count the words") else len(words))


@pytest.mark.parametrize(("a", "b"), [(5, 7), (958, 67), (999, 1), (70, 0), (503, 498)])
def test_worked_arithmetic_ends_in_the_result(a: int, b: int) -> None:
    for work, result in ((carry(a, b), a + b), (borrow(max(a, b), min(a, b)), abs(a - b))):
        steps = re.findall(r"([\d+-]+)=(\d+)", work)
        assert all(eval(left) == int(right) for left, right in steps)
        digits = [right[-1] for _, right in steps[:-1]] + [steps[-1][1]]
        assert int("".join(reversed(digits))) == result


def test_thinking_comes_with_its_mode() -> None:
    for name in SKILLS:
        for item in items(name, 30, testing=False):
            assert (item.thinking_mode == "enabled") == name.endswith("_thinking") == bool(item.answer.reasoning)


def test_the_mixture_draws_every_skill_and_every_mode() -> None:
    chats = [skill_chat(Draw(seed)) for seed in range(1500)]
    assert {chat.thinking_mode for chat in chats} == {None, "enabled", "disabled", "adaptive"}
    assert 0.1 < sum(bool(chat.tools) for chat in chats) / len(chats) < 0.5
    assert sum(any(turn.role == "tool" for turn in chat.turns) for chat in chats) > 20
    assert sum("def " in chat.turns[-1].content for chat in chats) > 50
    assert skill_text(Draw(7)) == skill_text(Draw(7)) != skill_text(Draw(8))


def test_a_document_asks_for_facts_it_holds_and_never_contradicts_itself() -> None:
    for seed in range(40):
        chat = needle_document(Draw(seed), FILLER, 3000, 1 + seed, 1 + seed // 2)
        text, question = chat.turns[0].content.rsplit("\n\n", 1)
        facts = {match[:3]: match[3] for match in FACT.findall(text)}
        assert len(facts) == len(FACT.findall(text)) == 1 + seed
        assert not any(is_test_key(key) for key in facts)  # type: ignore[arg-type]
        assert len(chat.turns) == 2 * (1 + seed // 2)
        asked = [question, *(turn.content for turn in chat.turns[2::2])]
        assert len(set(asked)) == len(asked)
        for sentence, answer in zip(asked, chat.turns[1::2], strict=True):
            a, b, c = re.fullmatch(r"What is the (\w+) of the (\w+) (\w+)\?", sentence).groups()  # type: ignore[union-attr]
            assert answer.content == f"The {a} of the {b} {c} is {facts[a, b, c]}."


def test_documents_keep_to_their_budget() -> None:
    lengths = [len(render(random_document(Draw(seed), FILLER, 20_000))) for seed in range(60)]
    assert max(lengths) < 22_000 and min(lengths) > 5_000 and max(lengths) > 16_000
    assert max(len(render(random_document(Draw(seed), FILLER, 600))) for seed in range(60)) < 1_400


def test_test_texts_ask_at_all_depths_with_alike_facts_beside() -> None:
    text = needle_text(Draw(3), FILLER * 10, num_facts=30, num_questions=10)

    facts = {match[:3]: match[3] for match in FACT.findall(text.text)}
    assert len(facts) == 30 and sum(is_test_key(key) for key in facts) == 10  # type: ignore[arg-type]
    depths = [text.text.index(fact.sentence) / len(text.text) for fact in text.asked]
    assert depths == sorted(depths) and depths[0] < 0.15 and depths[-1] > 0.85
    alike = [sum(sum(x == y for x, y in zip(a, b, strict=True)) == 2 for b in facts) for a in facts]
    assert sum(count > 0 for count in alike) > 15
    for item, fact in zip(text.items(), text.asked, strict=True):
        assert item.held_out and item.messages[0]["content"] == f"{text.text}\n\n{fact.question}"
        assert item.check == SameText(fact.sentence) and item.answer.content == fact.sentence
