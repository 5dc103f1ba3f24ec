"""Scores of a trained model: held-out loss, and exact answers on questions it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from tamis.models.m3 import M3ForCausalLM
from tamis.train.chats import Chat, Draw, Turn, code, conversation, facts, maths, recall, render, render_prompt, words
from tamis.train.dataset import Encoder, pack
from tamis.train.generate import generate
from tamis.train.loop import sequence_loss
from tamis.train.tokenizer import END_OF_TURN, special_id

# Far above the seeds of training.
_EVALUATION_SEED = 900_000_000

DEMO_QUESTIONS = (
    "Hello! Who are you, and what can you do?",
    "Hi! What's your name?",
    "What is the capital of France?",
    "What is 27 + 45?",
    "Write a Python function that adds two numbers.",
    "Write a Python function to check whether a number is prime.",
    "Tell me a story about a fox.",
    "What is sparse attention?",
    "Sort these numbers: 42, 7, 19, 3",
    "Give me a JSON object with name Clara and age 30.",
    "Thank you very much!",
)


@dataclass(frozen=True)
class Skill:
    """Questions with one right answer; `answers` maps a draw to (chat, text that the answer must hold)."""

    name: str
    answers: Callable[[Draw], tuple[Chat, str]]
    max_tokens: int = 96


def _single(question: str, answer: str) -> Chat:
    return Chat((Turn("user", question), Turn("assistant", answer)))


def _sum(draw: Draw) -> tuple[Chat, str]:
    question, answer, reasoning = maths.arithmetic(draw, testing=True)
    return _single(question, answer), reasoning.split(" = ")[1].rstrip(".")


def _whole(skill: Callable[[Draw], tuple[str, str]]) -> Callable[[Draw], tuple[Chat, str]]:
    def answers(draw: Draw) -> tuple[Chat, str]:
        question, answer = skill(draw)
        return _single(question, answer), answer

    return answers


def _body(draw: Draw) -> tuple[Chat, str]:
    question, answer = code.write_function(draw)
    return _single(question, answer), answer.split("):\n")[1].split("\n```")[0]


def _personal(draw: Draw) -> tuple[Chat, str]:
    turns = recall.personal(draw)
    return Chat(turns), turns[-1].content


SKILLS = (
    Skill("held-out sums (two digits)", _sum),
    Skill("capitals, continents, languages", _whole(facts.capital)),
    Skill("small facts", _whole(facts.table_fact)),
    Skill("sort a list", _whole(words.sort_things)),
    Skill("read a short text", _whole(recall.short_text)),
    Skill("remember across turns", _personal),
    Skill("JSON", _whole(words.person_json)),
    Skill("Python function", _body),
)


def needle_skill(filler: Sequence[str], characters: int) -> Skill:
    """Find one code in about `characters` of text."""

    def answers(draw: Draw) -> tuple[Chat, str]:
        chat = recall.needle(draw, filler, characters)
        chat = Chat(chat.turns[:2])
        return chat, chat.turns[-1].content

    return Skill(f"find a code in {characters:,} characters", answers, max_tokens=16)


def score(model: M3ForCausalLM, tokenizer: Tokenizer, skill: Skill, *, count: int, max_tokens: int) -> float:
    """Share of `count` questions whose greedy answer holds the right text."""
    max_tokens = min(max_tokens, skill.max_tokens)
    chats = [skill.answers(Draw(_EVALUATION_SEED + i)) for i in range(count)]
    prompts = [tokenizer.encode(render_prompt(chat)).ids for chat, _ in chats]
    stop = special_id(tokenizer, END_OF_TURN)
    right = 0
    # Prompts of like length together; long ones a few at a time.
    order = sorted(range(count), key=lambda i: len(prompts[i]))
    while order:
        batch = [order.pop()]
        size = max(1, 65_536 // (len(prompts[batch[0]]) + max_tokens))
        batch += [order.pop() for _ in range(min(size - 1, len(order)))]
        for index, ids in zip(
            batch, generate(model, [prompts[i] for i in batch], max_tokens=max_tokens, stop_id=stop), strict=True
        ):
            right += chats[index][1] in tokenizer.decode(ids)
    return right / count


@torch.no_grad()
def held_out_loss(model: M3ForCausalLM, tokenizer: Tokenizer, *, count: int, length: int) -> float:
    """Cross-entropy of answers in conversations from unseen seeds, in nats a token."""
    documents = Encoder(tokenizer).chats(render(conversation(Draw(_EVALUATION_SEED + i))) for i in range(count))
    tokens, weights = pack(documents, length, seed=0)
    device = next(model.parameters()).device
    total = 0.0
    for row, weight in zip(tokens, weights, strict=True):
        spoken = torch.from_numpy((weight == 100).astype("float32"))[None].to(device)
        total += float(sequence_loss(model, torch.from_numpy(row.astype("int64"))[None].to(device), spoken)[0])
    return total / len(tokens)


def samples(model: M3ForCausalLM, tokenizer: Tokenizer, *, max_tokens: int) -> list[tuple[str, str]]:
    """Greedy answers to `DEMO_QUESTIONS`, and a continued function."""
    stop = special_id(tokenizer, END_OF_TURN)
    prompts = [render_prompt(_single(question, "")) for question in DEMO_QUESTIONS] + [
        "def add(a, b):",
        "def is_even(n):",
    ]
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    answers = [tokenizer.decode(new) for new in generate(model, ids, max_tokens=max_tokens, stop_id=stop)]
    return list(zip((*DEMO_QUESTIONS, *prompts[-2:]), answers, strict=True))
