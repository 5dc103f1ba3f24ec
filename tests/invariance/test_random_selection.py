"""Random selection through the engine: not the model's, as repeatable as the model's, and named on the card."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tamis.config import AttentionConfig
from tamis.errors import ConfigError
from tests.invariance.engine import VOCAB, Result, SmallEngine, greedy


def prompt(length: int) -> list[int]:
    return random.Random(length).choices(range(VOCAB), k=length)


def answers(folder: Path, lengths: list[int], **config: object) -> list[Result]:
    engine = SmallEngine(folder, threads=1, **config)
    found = engine.run([greedy(str(n), prompt(n), 8) for n in lengths])
    engine.close()
    return [found[str(n)] for n in lengths]


def test_it_differs_only_where_blocks_are_left_out(tmp_path: Path) -> None:
    """The model reads 3 blocks: up to 384 tokens there is nothing to select."""
    short, long = [130, 370], [900, 1500]

    model = answers(tmp_path, short + long)
    drawn = answers(tmp_path, short + long, selection="random")

    assert [r.logprobs for r in drawn[:2]] == [r.logprobs for r in model[:2]]
    assert all(a.logprobs != b.logprobs for a, b in zip(drawn[2:], model[2:], strict=True))


def test_chunks_and_neighbours_do_not_change_it(tmp_path: Path) -> None:
    alone = answers(tmp_path, [1003], selection="random", max_num_batched_tokens=4096)[0]
    together = answers(tmp_path, [700, 1003, 90], selection="random", max_num_batched_tokens=100)[1]
    assert (together.token_ids, together.logprobs) == (alone.token_ids, alone.logprobs)


def test_the_card_says_so(tmp_path: Path) -> None:
    for selection in ("model", "random"):
        engine = SmallEngine(tmp_path, threads=1, selection=selection)
        assert ("selection" in engine.info.card) == (selection == "random")
        engine.close()
    with pytest.raises(ConfigError, match="selection is 'all', but must be one of model, random"):
        AttentionConfig(selection="all")
