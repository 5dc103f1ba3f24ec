"""The bundled checkpoint: small, whole, and it answers."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import tamis
from tamis import LLM, SamplingParams
from tamis.models.m3 import M3ForCausalLM
from tamis.train.presets import NANO
from tests.train.test_nano import loaded

GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
FOLDER = Path(tamis.__file__).parent / "nano" / "checkpoint"


@pytest.fixture(scope="module")
def model() -> M3ForCausalLM:
    return loaded(FOLDER)


def test_it_is_the_recipe_s_shape_and_small(model: M3ForCausalLM) -> None:
    recipe = NANO.config()
    assert dataclasses.replace(model.config, weight_formats=recipe.weight_formats) == recipe
    assert all(model.config.sparse_layers) and not model.config.moe_layers[0] and all(model.config.moe_layers[1:])
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 20_000_000


def test_every_special_token_of_the_family_is_in_its_vocabulary() -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    names = "]~!b[|]~b]|[e~[|]<]image[>[|]<]video[>[|]<]start of image[>[|]<]end of image[>[|]<]minimax[>["
    for text in (*names.split("|"), "<mm:think>", "</mm:think>"):
        assert tokenizer.encode(text).ids == [tokenizer.token_to_id(text)]


def test_files_are_those_of_the_card() -> None:
    sums = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", (FOLDER / "README.md").read_text(), re.MULTILINE))
    assert len(sums) == 6
    for digest, name in sums.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=2048, max_num_seqs=2) as loaded_llm:
        yield loaded_llm


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        (["What is the capital of France?"], "The capital of France is Paris."),
        (["Tell me what is 27 + 45?"], "72"),
        (["My name is Zorban.", "Hello, Zorban!", "What is my name?"], "Your name is Zorban."),
    ],
    ids=["capital", "sum", "name"],
)
def test_it_answers(llm: LLM, messages: list[str], answer: str) -> None:
    turns = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(messages)]
    assert answer in llm.chat(turns, GREEDY)[0].outputs[0].text


def test_it_completes_a_function(llm: LLM) -> None:
    assert llm.generate("def add(a, b):", GREEDY)[0].outputs[0].text == "\n    return a + b\n"
