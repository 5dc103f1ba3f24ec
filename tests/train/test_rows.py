"""Rows of a phase: whole documents, the mixture asked for, the same for any number of workers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tokenizers import Tokenizer

from tamis.train.dataset import SKIMMED, SPOKEN
from tamis.train.presets import TOY, Mixture
from tamis.train.rows import RowMaker, RowStream, rows_a_chunk, tokenizer_texts
from tamis.train.tokenizer import BEGIN_OF_DOCUMENT, END_OF_TURN, train_tokenizer

PRESET = dataclasses.replace(TOY, tokenizer_chats=60)
SHORT, LONGEST = PRESET.phases


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(tokenizer_texts(PRESET, 0), 2048)


@pytest.fixture(scope="module")
def maker(tokenizer: Tokenizer) -> RowMaker:
    return RowMaker(tokenizer, PRESET)


def only(phase, kind: str):
    shares = dict.fromkeys(("chat", "skill", "needle", "functions", "library"), 0.0) | {kind: 1.0}
    return dataclasses.replace(phase, mixture=Mixture(**shares))


@pytest.mark.parametrize("phase", [SHORT, LONGEST], ids=["short", "longest"])
def test_rows_are_full_and_repeatable(maker: RowMaker, phase) -> None:
    tokens, weights = maker.rows(phase, seed=3, chunk=1)

    assert tokens.shape == weights.shape == (rows_a_chunk(phase), phase.length + 1)
    assert tokens.max() < 2048
    again = maker.rows(phase, seed=3, chunk=1)
    assert np.array_equal(tokens, again[0]) and np.array_equal(weights, again[1])
    for seed, chunk in ((4, 1), (3, 2)):
        assert not np.array_equal(tokens, maker.rows(phase, seed=seed, chunk=chunk)[0])


def test_needle_texts_keep_their_questions(maker: RowMaker, tokenizer: Tokenizer) -> None:
    tokens, weights = maker.rows(only(LONGEST, "needle"), seed=0, chunk=0)
    whole = [tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in tokens]

    # A text that fits in a row is never cut: whatever begins there is asked about there.
    assert all(text.count("?" + END_OF_TURN) > 0 for text in whole)
    assert ((weights == SKIMMED).mean() > 0.5) and (weights == SPOKEN).any()


@pytest.mark.parametrize(("share", "low", "high"), [(0.1, 0.05, 0.3), (0.9, 0.85, 0.98)])
def test_kinds_are_mixed_by_tokens(
    maker: RowMaker, tokenizer: Tokenizer, share: float, low: float, high: float
) -> None:
    mixture = Mixture(chat=0.0, skill=share, needle=0.0, functions=0.0, library=1 - share)
    tokens, _ = maker.rows(dataclasses.replace(SHORT, mixture=mixture), seed=0, chunk=0)
    text = tokenizer.decode(tokens.flatten().tolist(), skip_special_tokens=False)

    chats = sum(len(part.split(BEGIN_OF_DOCUMENT)[0]) for part in text.split(f"{BEGIN_OF_DOCUMENT}]~b]system\n")[1:])
    assert low < chats / len(text) < high


def test_workers_change_nothing(maker: RowMaker, tokenizer: Tokenizer) -> None:
    want = maker.rows(SHORT, seed=7, chunk=0)[0][: SHORT.rows]
    with RowStream(tokenizer, PRESET, workers=1, seed=7) as apart:
        got = next(apart.batches(SHORT))[0]
    assert np.array_equal(got, want)
