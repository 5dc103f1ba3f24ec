"""Kernels whose programs own queries: a tile of neighbouring tokens and a KV head walk the union of their blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from tamis.kernels.sparse_attention.triton_tile import (
    attend,
    load_queries,
    load_tile,
    merge,
    normalise,
    over_rows,
    round_to_bf16,
    unpack,
)

_NOBODY = tl.constexpr((1 << 62) - 1)
_MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def _block_of(selection_ptr, tables_ptr, position, at, inside, table):
    """Pool block and visible keys (0 where nothing is selected) of one selected index."""
    index = tl.load(selection_ptr + at, mask=inside, other=-1).to(tl.int64)
    chosen = index >= 0
    block = tl.load(tables_ptr + table + index, mask=chosen, other=0).to(tl.int64)
    visible = tl.where(chosen, tl.minimum(position - index * 128 + 1, 128), 0).to(tl.int32)
    return index, block, visible


@triton.jit(do_not_specialize=["tokens", "table_stride"])
def union_kernel(
    selection_ptr,
    tables_ptr,
    positions_ptr,
    blocks_ptr,
    members_ptr,
    counts_ptr,
    tokens,
    table_stride,
    HKV: tl.constexpr,
    SLOTS: tl.constexpr,
    SLOTS_PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """The union of the blocks that a tile's tokens selected for a head, ascending by their place in the sequence.

    Writes, with E = TOKENS · SLOTS_PADDED: blocks [tiles, HKV, E] int64 = pool block · 256 + most keys that any token
    sees; members [tiles, HKV, E, TOKENS] int32 = slot · 256 + keys that the token sees, 0 where it did not select the
    block; counts [tiles, HKV] int32. Two blocks are one if place and pool block agree.
    """
    E: tl.constexpr = TOKENS * SLOTS_PADDED
    tile = tl.program_id(0)
    head = tl.program_id(1)
    entry = tl.arange(0, E)
    slot = entry % SLOTS_PADDED
    token = (tile * TOKENS + entry // SLOTS_PADDED).to(tl.int64)
    inside = (token < tokens) & (slot < SLOTS)
    position = tl.load(positions_ptr + token, mask=token < tokens, other=0)
    at = (token * HKV + head) * SLOTS + slot
    index, block, visible = _block_of(selection_ptr, tables_ptr, position, at, inside, token * table_stride)
    chosen = visible > 0
    key = tl.where(chosen, index << 32 | block, _NOBODY)

    same = key[:, None] == key[None, :]
    earlier = entry[:, None] < entry[None, :]
    # Once along each axis, so that either layout has what it needs.
    is_first = (tl.sum((same & earlier).to(tl.int32), 0) == 0) & (key < _NOBODY)
    is_first_row = (tl.sum((same & (entry[None, :] < entry[:, None])).to(tl.int32), 1) == 0) & (key < _NOBODY)
    rank = tl.sum((is_first[None, :] & (key[None, :] < key[:, None])).to(tl.int32), 1)
    most = tl.max(tl.where(same, visible[None, :], 0), 1)
    out = (tile.to(tl.int64) * HKV + head) * E
    tl.store(blocks_ptr + out + rank, block * 256 + most, mask=is_first_row)
    tl.store(counts_ptr + tile * HKV + head, tl.sum(is_first.to(tl.int32), 0))

    member = tl.where(chosen, slot * 256 + visible, 0)
    here = (entry[:, None] == rank[None, :]) & chosen[None, :]
    of_token = tl.sum(tl.reshape(tl.where(here, member[None, :], 0), (E, TOKENS, SLOTS_PADDED)), 2)
    tl.store(members_ptr + out * TOKENS + entry[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :], of_token)


@triton.jit
def _entry(
    e,
    count,
    selection_ptr,
    tables_ptr,
    blocks_ptr,
    members_ptr,
    first,
    table,
    position,
    token_of_row,
    TOKENS: tl.constexpr,
):
    """Entry e of the walk: (pool block, keys to load, [R] slot · 256 + keys that each row sees); nothing past count."""
    inside = e < count
    if TOKENS == 1:
        _, block, visible = _block_of(selection_ptr, tables_ptr, position, first + e, inside, table)
        member = tl.full(token_of_row.shape, 0, tl.int32) + (e * 256 + visible).to(tl.int32)
        return block, visible, tl.where(inside, member, 0)
    else:
        packed = tl.load(blocks_ptr + first + e, mask=inside, other=0)
        members = members_ptr + (first + e) * TOKENS + token_of_row
        member = tl.load(members, mask=inside & (token_of_row >= 0), other=0)
        return packed >> 8, (packed & 255).to(tl.int32), member


@triton.jit(do_not_specialize=["tokens", "table_stride"])
def query_kernel(
    q_ptr,
    k_codes_ptr,
    k_scales_ptr,
    v_codes_ptr,
    v_scales_ptr,
    selection_ptr,
    tables_ptr,
    positions_ptr,
    blocks_ptr,
    members_ptr,
    counts_ptr,
    out_ptr,
    part_out_ptr,
    part_stats_ptr,
    tokens,
    table_stride,
    factor,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    SLOTS: tl.constexpr,
    SLOTS_PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    STEPS: tl.constexpr,
    CODES_BLOCK: tl.constexpr,
    CODES_HEAD: tl.constexpr,
    SCALES_BLOCK: tl.constexpr,
    SCALES_HEAD: tl.constexpr,
    FORMAT: tl.constexpr,
    E4M3: tl.constexpr,
    UNDO: tl.constexpr,
    SWAP: tl.constexpr,
    PTX: tl.constexpr,
):
    """TOKENS tokens' rows of a KV head against the blocks that any of them selected.

    TOKENS = 1 reads the selection itself, more read `union_kernel`'s tables. STEPS = 0: the program walks all entries
    and writes the output. Otherwise it takes entries program_id(2) · STEPS … + STEPS and writes each pair's partial
    for `combine_kernel`: part_out [T, HKV, SLOTS, GROUP, 128] bf16, part_stats [T, HKV, SLOTS, 2, GROUP] fp32.
    The next block is loaded and unpacked while the present one is worked on.
    """
    R: tl.constexpr = TOKENS * GROUP_PADDED
    D: tl.constexpr = 128
    tile = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.arange(0, R)
    token_of_row = row // GROUP_PADDED
    token = (tile * TOKENS + token_of_row).to(tl.int64)
    member_of_group = row % GROUP_PADDED
    live = (token < tokens) & (member_of_group < GROUP)
    q_rows = (token * HKV + head) * GROUP + member_of_group
    q = load_queries(q_ptr, q_rows, live, HKV * GROUP, SWAP, E4M3, PTX)

    position = tl.load(positions_ptr + tile)
    table = tile.to(tl.int64) * table_stride
    if TOKENS == 1:
        first = (tile.to(tl.int64) * HKV + head) * SLOTS
        slot = tl.arange(0, SLOTS_PADDED)
        chosen = tl.load(selection_ptr + first + slot, mask=slot < SLOTS, other=-1) >= 0
        # One past the last: padding stands at the end, and would be skipped anywhere.
        count = tl.max(tl.where(chosen, slot + 1, 0), 0)
    else:
        first = (tile.to(tl.int64) * HKV + head) * (TOKENS * SLOTS_PADDED)
        count = tl.load(counts_ptr + tile * HKV + head)
    begin = 0
    if STEPS > 0:
        begin = tl.program_id(2) * STEPS
        count = tl.minimum(count, begin + STEPS)
    # Triton's interpreter does not count to a number that it has to load; entries past the last change nothing.
    MOST: tl.constexpr = STEPS if STEPS > 0 else TOKENS * SLOTS_PADDED

    acc = tl.zeros((D, R) if SWAP else (R, D), tl.float32)
    peak = tl.full((R,), _MINUS_INFINITY, tl.float32)
    mass = tl.zeros((R,), tl.float32)

    block, visible, member = _entry(
        begin, count, selection_ptr, tables_ptr, blocks_ptr, members_ptr, first, table, position, token_of_row, TOKENS
    )
    codes, scales = load_tile(
        k_codes_ptr, k_scales_ptr, block, head, visible,
        CODES_BLOCK, CODES_HEAD, SCALES_BLOCK, SCALES_HEAD, FORMAT,
    )  # fmt: skip
    k = unpack(codes, scales, FORMAT, E4M3, PTX)
    codes, scales = load_tile(
        v_codes_ptr, v_scales_ptr, block, head, visible,
        CODES_BLOCK, CODES_HEAD, SCALES_BLOCK, SCALES_HEAD, FORMAT,
    )  # fmt: skip
    v = unpack(codes, scales, FORMAT, E4M3, PTX)
    next_block, next_visible, next_member = _entry(
        begin + 1, count, selection_ptr, tables_ptr, blocks_ptr, members_ptr, first, table, position, token_of_row,
        TOKENS,
    )  # fmt: skip
    for step in range(tl.maximum(count - begin, 0) if PTX else MOST):
        k_codes, k_scales = load_tile(
            k_codes_ptr, k_scales_ptr, next_block, head, next_visible,
            CODES_BLOCK, CODES_HEAD, SCALES_BLOCK, SCALES_HEAD, FORMAT,
        )  # fmt: skip
        v_codes, v_scales = load_tile(
            v_codes_ptr, v_scales_ptr, next_block, head, next_visible,
            CODES_BLOCK, CODES_HEAD, SCALES_BLOCK, SCALES_HEAD, FORMAT,
        )  # fmt: skip
        after_block, after_visible, after_member = _entry(
            begin + step + 2, count, selection_ptr, tables_ptr, blocks_ptr, members_ptr, first, table, position,
            token_of_row, TOKENS,
        )  # fmt: skip
        part_out, part_peak, part_mass = attend(q, k, v, member & 255, factor, SWAP)
        if STEPS == 0:
            part_out = round_to_bf16(part_out, PTX)
            acc, peak, mass = merge(acc, peak, mass, part_out, part_peak, part_mass, SWAP)
        else:
            pair = (token * HKV + head) * SLOTS + (member >> 8)
            mask = live & (member > 0)
            out_rows = over_rows((pair * GROUP + member_of_group) * D, SWAP)
            d = over_rows(tl.arange(0, D), not SWAP)
            tl.store(part_out_ptr + out_rows + d, part_out.to(tl.bfloat16), mask=over_rows(mask, SWAP))
            stats = part_stats_ptr + pair * (2 * GROUP) + member_of_group
            tl.store(stats, part_peak, mask=mask)
            tl.store(stats + GROUP, part_mass, mask=mask)
        k = unpack(k_codes, k_scales, FORMAT, E4M3, PTX)
        v = unpack(v_codes, v_scales, FORMAT, E4M3, PTX)
        next_block, next_visible, member, next_member = after_block, after_visible, next_member, after_member
    if STEPS == 0:
        out = normalise(acc, mass, UNDO, SWAP)
        at = over_rows(q_rows * D, SWAP) + over_rows(tl.arange(0, D), not SWAP)
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=over_rows(live, SWAP))


@triton.jit
def combine_kernel(
    part_out_ptr,
    part_stats_ptr,
    selection_ptr,
    out_ptr,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    UNDO: tl.constexpr,
):
    """ROWS query heads of one token and KV head: their pairs' partials, merged in ascending slots, to the output."""
    D: tl.constexpr = 128
    pair = tl.program_id(0).to(tl.int64)  # token · HKV + head
    member = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = member < GROUP
    d = tl.arange(0, D)
    acc = tl.zeros((ROWS, D), tl.float32)
    peak = tl.full((ROWS,), _MINUS_INFINITY, tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    for slot in tl.static_range(SLOTS):
        at = pair * SLOTS + slot
        mask = live & (tl.load(selection_ptr + at) >= 0)
        part_peak = tl.load(part_stats_ptr + at * (2 * GROUP) + member, mask=mask, other=_MINUS_INFINITY)
        part_mass = tl.load(part_stats_ptr + at * (2 * GROUP) + GROUP + member, mask=mask, other=0.0)
        part_out = tl.load(
            part_out_ptr + (at * GROUP + member)[:, None] * D + d[None, :], mask=mask[:, None], other=0.0
        )
        acc, peak, mass = merge(acc, peak, mass, part_out.to(tl.float32), part_peak, part_mass, False)
    out = normalise(acc, mass, UNDO, False)
    rows = pair * GROUP + member
    tl.store(out_ptr + rows[:, None] * D + d[None, :], out.to(out_ptr.dtype.element_ty), mask=live[:, None])
