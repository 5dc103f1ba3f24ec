"""Which token goes to which expert, put in order on the device: no length ever reaches the host.

A (token, slot) pair of `expert_ids` gets a place among all pairs, sorted by expert and then by pair. An expert's
places are cut into tiles; a tile is a row (expert, first place, number of places) of a table. The table has as many
rows as any routing of so many pairs may need, and the rest say 0 places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tamis.kernels.packed_operands import padded
from tamis.kernels.packed_tile import phase_row

_CHUNK = 64


@dataclass(frozen=True)
class Plan:
    """What `plan` found.

    Attributes:
        tiles: [max_tiles, 3] int32, (expert, first place, places).
        pairs: [T·k] int32, the pair at each place.
        places: [T·k] int32, the place of each pair.
        phased: [T, H rounded up to 128] bf16, x in phased order; x itself where that was not asked for.
    """

    tiles: Tensor
    pairs: Tensor
    places: Tensor
    phased: Tensor


@triton.jit(do_not_specialize=["num_pairs", "max_tiles"])
def plan_kernel(
    ids_ptr,
    tiles_ptr,
    pairs_ptr,
    places_ptr,
    x_ptr,
    phased_ptr,
    num_pairs,
    max_tiles,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    H: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program e < EXPERTS orders expert e's pairs and writes its tiles; the next T programs phase one row of x each.

    Every program counts all pairs itself, so that none waits for another: EXPERTS · T · k comparisons in parallel.
    """
    expert = tl.program_id(0)
    if expert >= EXPERTS:
        phase_row(x_ptr, phased_ptr, expert - EXPERTS, H, 1024)
    else:
        chunk = tl.arange(0, CHUNK)
        experts = tl.arange(0, EXPERTS_BLOCK)
        counts = tl.zeros((EXPERTS_BLOCK,), tl.int32)
        # while, not range: Triton's interpreter cannot take a range's end from an argument.
        start = 0
        while start < num_pairs:
            pairs = start + chunk
            ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32)
            counts += tl.sum((ids[:, None] == experts[None, :]).to(tl.int32), axis=0)
            start += CHUNK
        before = experts < expert
        mine = tl.sum(tl.where(experts == expert, counts, 0))
        first_place = tl.sum(tl.where(before, counts, 0))
        tiles = (counts + BLOCK_M - 1) // BLOCK_M
        first_tile = tl.sum(tl.where(before, tiles, 0))

        place = first_place
        start = 0
        while start < num_pairs:
            pairs = start + chunk
            ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32)
            hit = ids == expert
            places = place + tl.cumsum(hit.to(tl.int32), axis=0) - 1
            tl.store(pairs_ptr + places, pairs, mask=hit)
            tl.store(places_ptr + pairs, places, mask=hit)
            place += tl.sum(hit.to(tl.int32))
            start += CHUNK

        zeros = tl.zeros((CHUNK,), tl.int32)
        start = 0
        while start * BLOCK_M < mine:
            tile = start + chunk
            entry = tiles_ptr + (first_tile + tile) * 3
            used = tile * BLOCK_M < mine
            tl.store(entry, zeros + expert, mask=used)
            tl.store(entry + 1, first_place + tile * BLOCK_M, mask=used)
            tl.store(entry + 2, tl.minimum(mine - tile * BLOCK_M, BLOCK_M), mask=used)
            start += CHUNK
        if expert == 0:
            start = tl.sum(tiles)
            while start < max_tiles:
                tl.store(tiles_ptr + (start + chunk) * 3 + 2, zeros, mask=start + chunk < max_tiles)
                start += CHUNK


def max_tiles(pairs: int, experts: int, block_m: int) -> int:
    """Most tiles that `pairs` places can be cut into."""
    return min(pairs, (pairs + experts * (block_m - 1)) // block_m)


def plan(x: Tensor, expert_ids: Tensor, experts: int, block_m: int, phase: bool) -> Plan:
    """Orders pairs, cuts tiles, and writes x in phased order where `phase` asks for it, in one launch.

    Args:
        x: [T, H] bf16, contiguous, T ≥ 1.
        expert_ids: [T, k] int64 or int32, contiguous, each in [0, experts).
        block_m: most places in a tile.
    """
    tokens, hidden = x.shape
    pairs = expert_ids.numel()
    count = max_tiles(pairs, experts, block_m)
    out = Plan(
        tiles=torch.empty((count, 3), dtype=torch.int32, device=x.device),
        pairs=torch.empty(pairs, dtype=torch.int32, device=x.device),
        places=torch.empty(pairs, dtype=torch.int32, device=x.device),
        phased=torch.empty((tokens, padded(hidden)), dtype=x.dtype, device=x.device) if phase else x,
    )
    plan_kernel[(experts + (tokens if phase else 0),)](
        expert_ids,
        out.tiles,
        out.pairs,
        out.places,
        x,
        out.phased,
        pairs,
        count,
        EXPERTS=experts,
        EXPERTS_BLOCK=triton.next_power_of_2(experts),
        BLOCK_M=block_m,
        H=hidden,
        CHUNK=min(_CHUNK, triton.next_power_of_2(pairs)),
        num_warps=4,
    )
    return out
