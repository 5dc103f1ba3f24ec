"""Exact selection in Triton: a threshold found by bisection over keys that sort like the scores, one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tamis.kernels.topk_blocks import MAX_BLOCKS, MAX_K

_NAN_SCORE = tl.constexpr(-1e30)
_FINITE_MAX = tl.constexpr(3.4028234663852886e38)
_BELOW_ALL = tl.constexpr(-(2**31))
_ABOVE_ALL = tl.constexpr(2**31 - 1)


@triton.jit
def _keys(score):
    """fp32 → int32 that sort alike; NaN counts as −1e30, infinities as the largest numbers, −0 as 0."""
    score = tl.where(score != score, _NAN_SCORE, score)
    # −0 + 0 is 0.
    score = tl.minimum(tl.maximum(score, -_FINITE_MAX), _FINITE_MAX) + 0.0
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _bisect(keys, need, low, high):
    """Raise `low` until exactly `need` keys are at or above it, or until it is the `need`-th largest key.

    Holds throughout: count(keys >= low) >= need > count(keys >= high). Returns (low, count(keys >= low)).
    """
    count = tl.sum((keys >= low).to(tl.int32), 0)
    middle = (low & high) + ((low ^ high) >> 1)
    while (count != need) & (middle != low):
        above = tl.sum((keys >= middle).to(tl.int32), 0)
        enough = above >= need
        count = tl.where(enough, above, count)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        middle = (low & high) + ((low ^ high) >> 1)
    return low, count


@triton.jit
def select_kernel(
    scores_ptr, positions_ptr, out_ptr, num_blocks, stride,
    HEADS: tl.constexpr, K: tl.constexpr, INIT: tl.constexpr, LOCAL: tl.constexpr, N: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """out[row] = the K best blocks of scores[row], ascending, −1 padded. Grid (rows); row = token · HEADS + head.

    Forced blocks are set apart; of the others the `need` best are wanted. Bisection finds the `need`-th largest of
    the GROUPS maxima of blocks g, g + GROUPS, … first: as many keys reach it, so the threshold is not below, and few
    keys more do. From there it goes on over all keys. Keys equal to the threshold are taken by lower block id.
    """
    row = tl.program_id(0).to(tl.int64)
    own = tl.minimum((tl.load(positions_ptr + row // HEADS) // 128).to(tl.int32), num_blocks - 1)
    block = tl.arange(0, N)
    free = (block >= INIT) & (block <= own - LOCAL)
    forced = (block <= own) & ((block < INIT) | (block > own - LOCAL))
    keys = tl.where(free, _keys(tl.load(scores_ptr + row * stride + block, mask=block <= own, other=0.0)), _BELOW_ALL)
    wanted = tl.minimum(own + 1, K)
    need = wanted - tl.minimum(own + 1, INIT + LOCAL)

    best = tl.max(tl.reshape(keys, (N // GROUPS, GROUPS)), 0)
    # GROUPS >= 2 · 32: blocks that are not forced lie in at least `need` groups.
    low = tl.min(tl.where(best == _BELOW_ALL, _ABOVE_ALL, best), 0)
    high = tl.max(best, 0) + 1
    if need <= 0:
        low = _ABOVE_ALL
        high = _ABOVE_ALL
    if GROUPS < N:
        low, _ = _bisect(best, need, low, high)
    low, count = _bisect(keys, need, low, high)

    chosen = forced | (keys >= low)
    if (count != need) & (need > 0):
        tied = (keys == low).to(tl.int32)
        surplus = count - need
        # The last `surplus` of the tied ones stay out.
        chosen = chosen & ((tied == 0) | (tl.cumsum(tied, 0) <= tl.sum(tied, 0) - surplus))
    slot = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(out_ptr + row * K + slot, block.to(tl.int64), mask=chosen)
    place = tl.arange(0, 32)
    tl.store(out_ptr + row * K + place, tl.full((32,), -1, tl.int64), mask=(place >= wanted) & (place < K))


def warps(blocks: int) -> int:
    """Warps that share a row of so many scores, 32 a thread where possible."""
    return max(1, min(16, blocks // 1024))


def select_blocks(scores: Tensor, positions: Tensor, *, k: int, init: int, local: int) -> Tensor:
    """See `cpu.select_blocks`. Graph-safe: positions are read on the device.

    Args:
        scores: [T, heads, n] fp32, heads and blocks of a token evenly strided as in a contiguous tensor, a view of its
            first blocks included. Scores past a query's own block are not read. n ≤ 16,384.
        positions: [T] int64.
        k, init, local: of the model; init + local ≤ k ≤ 32.

    Returns:
        [T, heads, k] int64. Reads each visible score once.

    Raises:
        ValueError: k, n or the strides are others.
    """
    tokens, heads, blocks = scores.shape
    if k > MAX_K or blocks > MAX_BLOCKS or init + local > k:
        raise ValueError(
            f"k is {k}, init + local {init + local} and blocks are {blocks},"
            f" but at most init + local <= k <= {MAX_K} and {MAX_BLOCKS} blocks are served"
        )
    if scores.stride(2) != 1 or scores.stride(0) != heads * scores.stride(1):
        raise ValueError(f"scores have strides {scores.stride()}, but rows must follow each other")
    out = torch.empty((tokens, heads, k), dtype=torch.int64, device=scores.device)
    if tokens:
        n = max(64, triton.next_power_of_2(blocks))
        select_kernel[(tokens * heads,)](
            scores, positions, out, blocks, scores.stride(1),
            HEADS=heads, K=k, INIT=init, LOCAL=local, N=n, GROUPS=min(n, 128 * warps(n)), num_warps=warps(n),
        )  # fmt: skip
    return out
