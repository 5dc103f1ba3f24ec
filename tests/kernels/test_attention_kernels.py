"""Selection and attention kernels against their slow references: odd sizes, poisoned pools, scattered blocks."""

from __future__ import annotations

import pytest
import torch

from tamis.kernels.dense_attention import cpu as dense_cpu
from tamis.kernels.dense_attention import dense_attention
from tamis.kernels.dense_attention import reference as dense_reference
from tamis.kernels.index_score import block_scores
from tamis.kernels.index_score import reference as score_reference
from tamis.kernels.lane import FORMATS, Lane, encode
from tamis.kernels.row_insert import insert
from tamis.kernels.row_insert import reference as insert_reference
from tamis.kernels.sparse_attention import cpu as sparse_cpu
from tamis.kernels.sparse_attention import reference as sparse_reference
from tamis.kernels.topk_blocks import reference as topk_reference
from tamis.kernels.topk_blocks import select_blocks

CONTEXTS = [1, 63, 127, 128, 129, 300, 2600]


def poisoned_lane(format: str, num_blocks: int, heads: int, dim: int, contract: str = "exact") -> Lane:
    """A lane whose every byte reads as NaN or as the largest value, so that an unmasked read shows."""
    codes, scales = encode(torch.zeros(num_blocks, heads, 128, dim), format)
    if format == "nvfp4":
        codes.fill_(0x77)
        scales.view(torch.uint8).fill_(0x7F)
    else:
        codes.copy_(torch.full(codes.shape, torch.nan).to(codes.dtype))
    return Lane(format, codes, scales, contract)


def filled_lanes(format: str, context: int, heads: int, dim: int, seed: int, contract: str = "exact"):
    """K and V lanes holding `context` random tokens in shuffled blocks, and the block table."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = -(-context // 128)
    table = torch.randperm(num_blocks + 3, generator=generator)[:num_blocks]
    slots = table.repeat_interleave(128)[:context] * 128 + torch.arange(context) % 128
    lanes = []
    for _ in range(2):
        lane = poisoned_lane(format, num_blocks + 3, heads, dim, contract)
        insert(lane, torch.randn(context, heads, dim, generator=generator), slots)
        lanes.append(lane)
    return lanes[0], lanes[1], table, generator


def last_positions(context: int, count: int) -> torch.Tensor:
    return torch.arange(max(0, context - count), context)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-5) -> None:
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("format", FORMATS)
def test_insert_matches_reference(format):
    x = torch.randn(7, 3, 32)
    slots = torch.tensor([5, 130, 127, 128, 300, 301, 0])
    got, want = poisoned_lane(format, 3, 3, 32), poisoned_lane(format, 3, 3, 32)
    insert(got, x, slots)
    insert_reference.insert(want, x, slots)
    assert torch.equal(got.codes.contiguous().view(torch.uint8), want.codes.contiguous().view(torch.uint8))
    if got.scales is not None:
        assert torch.equal(got.scales.contiguous().view(torch.uint8), want.scales.contiguous().view(torch.uint8))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("format", FORMATS)
def test_block_scores_match_reference(format, context):
    lane, _, table, generator = filled_lanes(format, context, 1, 32, seed=context)
    positions = last_positions(context, 5)
    q = torch.randn(len(positions), 3, 32, generator=generator)
    close(
        block_scores(q, lane, table, positions).nan_to_num(neginf=-1e9),
        score_reference.block_scores(q, lane, table, positions).nan_to_num(neginf=-1e9),
    )


def test_block_scores_under_the_e4m3_contract_round_the_query():
    lane, _, table, generator = filled_lanes("nvfp4", 300, 1, 32, seed=9, contract="e4m3")
    q = torch.randn(2, 1, 32, generator=generator)
    positions = torch.tensor([298, 299])
    got = block_scores(q, lane, table, positions)
    close(got, score_reference.block_scores(q, lane, table, positions))
    assert not torch.equal(got, block_scores(q, Lane("nvfp4", lane.codes, lane.scales, "exact"), table, positions))


@pytest.mark.parametrize("k", [1, 2, 3, 16])
@pytest.mark.parametrize("init, local", [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("num_blocks", [1, 2, 17, 40])
def test_selection_matches_reference_with_ties_and_nan(k, init, local, num_blocks):
    if init + local > k:
        init, local = 0, 1
    generator = torch.Generator().manual_seed(k * 100 + num_blocks)
    positions = torch.randint(0, num_blocks * 128, (9,), generator=generator)
    positions[0] = num_blocks * 128 - 1
    scores = torch.randint(-3, 3, (9, 2, num_blocks), generator=generator).float()  # few values: many ties
    scores[torch.rand(scores.shape, generator=generator) < 0.1] = torch.nan
    scores[torch.rand(scores.shape, generator=generator) < 0.05] = torch.inf
    scores[torch.rand(scores.shape, generator=generator) < 0.05] = -torch.inf
    got = select_blocks(scores, positions, k=k, init=init, local=local)
    bounded = scores.clamp(-torch.finfo(torch.float32).max, torch.finfo(torch.float32).max)
    want = topk_reference.select_blocks(bounded, positions, k=k, init=init, local=local)
    assert torch.equal(got, want)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_dense_attention_matches_reference(format, context):
    k_lane, v_lane, table, generator = filled_lanes(format, context, 2, 32, seed=context + 1)
    positions = last_positions(context, 7)
    q = torch.randn(len(positions), 6, 32, generator=generator)
    close(
        dense_attention(q, k_lane, v_lane, table, positions, 0.2),
        dense_reference.dense_attention(q, k_lane, v_lane, table, positions, 0.2),
    )


def random_selection(positions: torch.Tensor, heads: int, k: int, generator: torch.Generator) -> torch.Tensor:
    num_blocks = int(positions.max()) // 128 + 1
    scores = torch.randn(len(positions), heads, num_blocks, generator=generator)
    return select_blocks(scores, positions, k=k, init=0, local=1)


@pytest.mark.parametrize("group", [1, 2, 16])
@pytest.mark.parametrize("queries", [1, 7, 70], ids=["gather-1", "gather-7", "kv-outer-70"])
@pytest.mark.parametrize("format, contract", [("float32", "exact"), ("nvfp4", "exact"), ("nvfp4", "e4m3")])
@pytest.mark.parametrize("context", [1, 129, 2600])
def test_sparse_attention_matches_reference(format, contract, context, queries, group):
    k_lane, v_lane, table, generator = filled_lanes(format, context, 2, 32, seed=context + 2, contract=contract)
    positions = last_positions(context, queries)
    q = torch.randn(len(positions), 2 * group, 32, generator=generator)
    selection = random_selection(positions, 2, 3, generator)
    args = (q, k_lane, v_lane, selection, table.expand(len(positions), -1), positions, 0.2)
    close(sparse_cpu.sparse_attention(*args), sparse_reference.sparse_attention(*args))


@pytest.mark.parametrize("group", [1, 4, 16])
def test_both_ways_and_the_dense_kernel_give_the_same_bits(group, monkeypatch):
    context = 1000
    k_lane, v_lane, table, generator = filled_lanes("bfloat16", context, 2, 64, seed=5)
    positions = last_positions(context, 130)
    q = torch.randn(len(positions), 2 * group, 64, generator=generator)
    selection = random_selection(positions, 2, 8, generator)  # all 8 blocks
    args = (q, k_lane, v_lane, selection, table.expand(len(positions), -1), positions, 0.125)
    outer = sparse_cpu.sparse_attention(*args)
    monkeypatch.setattr(sparse_cpu, "_MAX_GATHER_TOKENS", 1 << 30)
    assert torch.equal(outer, sparse_cpu.sparse_attention(*args))
    assert torch.equal(outer, dense_attention(q, k_lane, v_lane, table, positions, 0.125))


@pytest.mark.parametrize("format", FORMATS)
def test_attention_in_tiles_leaves_the_pool_alone(format, monkeypatch):
    context = 300
    k_lane, v_lane, table, generator = filled_lanes(format, context, 2, 32, seed=11)
    positions = last_positions(context, 300)
    q = torch.randn(context, 4, 32, generator=generator)
    selection = random_selection(positions, 2, 3, generator)
    before = v_lane.codes.contiguous().view(torch.uint8).clone()
    whole = dense_attention(q, k_lane, v_lane, table, positions, 0.2)
    monkeypatch.setattr(dense_cpu, "_TILE_ROWS", 4 * 37)
    monkeypatch.setattr(sparse_cpu, "_TILE_VALUES", 4 * 3 * 32 * 37)
    assert torch.equal(dense_attention(q, k_lane, v_lane, table, positions, 0.2), whole)
    tables = table.expand(context, -1)
    assert torch.equal(sparse_cpu.sparse_attention(q, k_lane, v_lane, selection, tables, positions, 0.2), whole)
    assert torch.equal(v_lane.codes.contiguous().view(torch.uint8), before)
