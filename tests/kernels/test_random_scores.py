"""Random selection: uniform, repeatable, the same in any chunk, forced blocks kept."""

from __future__ import annotations

import torch

from tamis.kernels.topk_blocks import random_scores, select_blocks


def scores_of(positions: torch.Tensor, blocks: int, seed: int = 2) -> torch.Tensor:
    return random_scores(positions, heads=3, num_blocks=blocks, seed=seed)


def test_scores_are_uniform_and_unrelated() -> None:
    scores = scores_of(torch.arange(70_001, 72_001), 97)

    assert scores.shape == (2000, 3, 97) and scores.dtype == torch.float32
    assert scores.min() >= 0 and scores.max() < 1
    counts = torch.histc(scores, 20, 0, 1) / scores.numel()
    assert (counts - 0.05).abs().max() < 0.002
    # Neighbouring positions, heads, blocks and layers say nothing of each other.
    other = random_scores(torch.arange(70_001, 72_001), heads=3, num_blocks=97, seed=3)
    for a, b in (
        (scores[1:], scores[:-1]),
        (scores[:, 1:], scores[:, :-1]),
        (scores[..., 1:], scores[..., :-1]),
        (scores, other),
    ):
        assert torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].abs() < 0.01


def test_a_score_does_not_depend_on_what_else_is_scored() -> None:
    positions = torch.tensor([5, 4099, 130_999, 77])
    whole = scores_of(positions, 1030)
    assert torch.equal(scores_of(positions[2:3], 1030), whole[2:3])
    assert torch.equal(scores_of(positions, 33), whole[..., :33])
    assert not torch.equal(scores_of(positions, 33, seed=1), whole[..., :33])


def test_selections_keep_the_forced_blocks_and_reach_all_others() -> None:
    positions = torch.arange(128 * 29 + 3, 128 * 30)  # every query sees 30 blocks
    chosen = select_blocks(scores_of(positions, 30), positions, k=6, init=1, local=2)

    assert all({0, 28, 29} <= set(row.tolist()) for row in chosen.flatten(0, 1))
    assert (chosen[..., 1:] > chosen[..., :-1]).all()
    counts = torch.bincount(chosen.flatten(), minlength=30)[1:28] / (len(positions) * 3)
    assert (counts - 3 / 27).abs().max() < 0.07
