"""Pool sizing: shares, caps and the error when a context cannot fit."""

from __future__ import annotations

import pytest

from tamis.errors import ConfigError
from tamis.planner.memory import plan_pool

BASE = {
    "row_bytes": 1000,
    "block_tokens": 128,
    "model_max_len": 1280,
    "asked_max_len": None,
    "max_num_seqs": 4,
    "free_bytes": 10_000_000,
    "asked_bytes": None,
    "asked_blocks": None,
}


def test_never_more_than_every_request_at_full_context():
    plan = plan_pool(**BASE)
    assert plan.num_blocks == 4 * 10 + 1
    assert plan.max_model_len == 1280


def test_a_share_of_free_memory_bounds_the_pool():
    plan = plan_pool(**{**BASE, "free_bytes": 80_000})
    assert plan.num_blocks == 20 + 1
    assert "25%" in plan.reason


def test_a_context_nobody_asked_for_is_cut_to_fit_and_says_so():
    plan = plan_pool(**{**BASE, "free_bytes": 20_000})
    assert plan.max_model_len == 5 * 128
    assert "cut from 1280" in plan.reason


@pytest.mark.parametrize(
    "change, message",
    [
        ({"asked_max_len": 2000}, "made for 1280"),
        ({"asked_max_len": 1280, "free_bytes": 20_000}, "needs 10 blocks"),
        ({"asked_blocks": 9}, "holds 9 blocks"),
        ({"asked_bytes": 500}, "holds 0 blocks"),
        ({"free_bytes": 0}, "holds 0 blocks"),
    ],
    ids=["over-model", "does-not-fit", "blocks", "bytes", "no-memory"],
)
def test_what_cannot_hold_one_request_is_an_error(change, message):
    with pytest.raises(ConfigError, match=message):
        plan_pool(**{**BASE, **change})


def test_asked_blocks_and_bytes_win():
    assert plan_pool(**{**BASE, "asked_blocks": 77}).num_blocks == 78
    assert plan_pool(**{**BASE, "asked_bytes": 30_000}).num_blocks == 31
