"""Kernels whose programs own blocks: pairs of query and block, sorted by block, in windows of 128 rows.

A window reads and unpacks each of its blocks once for all its queries, and writes every pair's partial to a place of
its own for `combine_kernel`. Sorted pairs cut at every 128 rows need no further lists: a window mostly has one block,
one with a boundary in it has a run more, and a block that many chose is cut by itself. The number of windows does not
depend on the selection, and neither does a partial on its window's other rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tamis.kernels.sparse_attention.triton_tile import attend, load_queries, load_tile, unpack

WINDOW_ROWS = 128
_NO_BLOCK = tl.constexpr((1 << 31) - 1)


@triton.jit(do_not_specialize=["pairs", "table_stride"])
def key_kernel(
    selection_ptr,
    tables_ptr,
    keys_ptr,
    pairs,
    table_stride,
    HKV: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """keys [T · HKV · SLOTS] int32 = pool block · HKV + head of each pair, the largest number where there is none."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < pairs
    index = tl.load(selection_ptr + pair, mask=inside, other=-1).to(tl.int64)
    token = pair // (HKV * SLOTS)
    block = tl.load(tables_ptr + token * table_stride + index, mask=index >= 0, other=0).to(tl.int64)
    key = tl.where(index >= 0, block * HKV + pair // SLOTS % HKV, _NO_BLOCK)
    tl.store(keys_ptr + pair, key.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["pairs"])
def outer_kernel(
    q_ptr,
    k_codes_ptr,
    k_scales_ptr,
    v_codes_ptr,
    v_scales_ptr,
    selection_ptr,
    positions_ptr,
    keys_ptr,
    order_ptr,
    part_out_ptr,
    part_stats_ptr,
    pairs,
    factor,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES_BLOCK: tl.constexpr,
    CODES_HEAD: tl.constexpr,
    SCALES_BLOCK: tl.constexpr,
    SCALES_HEAD: tl.constexpr,
    FORMAT: tl.constexpr,
    E4M3: tl.constexpr,
    ROWS: tl.constexpr,
    PTX: tl.constexpr,
):
    """Partials of one window: ROWS / GROUP_PADDED pairs, sorted by key; order [·] int64 says which pairs they are.

    See `query_kernel` for part_out and part_stats.
    """
    D: tl.constexpr = 128
    row = tl.arange(0, ROWS)
    at = tl.program_id(0).to(tl.int64) * (ROWS // GROUP_PADDED) + row // GROUP_PADDED
    member = row % GROUP_PADDED
    inside = at < pairs
    key = tl.load(keys_ptr + at, mask=inside, other=_NO_BLOCK)
    pair = tl.load(order_ptr + at, mask=inside, other=0)
    live = (key < _NO_BLOCK) & (member < GROUP)
    query = pair // SLOTS
    position = tl.load(positions_ptr + query // HKV, mask=live, other=0)
    index = tl.load(selection_ptr + pair, mask=live, other=0).to(tl.int64)
    limit = tl.where(live, tl.minimum(position - index * 128 + 1, 128), 0).to(tl.int32)
    q = load_queries(q_ptr, query * GROUP + member, live, HKV * GROUP, False, E4M3, PTX)
    d = tl.arange(0, D)

    current = tl.min(key, 0)
    while current < _NO_BLOCK:
        here = key == current
        seen = tl.where(here, limit, 0)
        block = (current // HKV).to(tl.int64)
        head = current % HKV
        visible = tl.max(seen, 0)
        codes, scales = load_tile(
            k_codes_ptr, k_scales_ptr, block, head, visible,
            CODES_BLOCK, CODES_HEAD, SCALES_BLOCK, SCALES_HEAD, FORMAT,
        )  # fmt: skip
        v_codes, v_scales = load_tile(
            v_codes_ptr, v_scales_ptr, block, head, visible,
            CODES_BLOCK, CODES_HEAD, SCALES_BLOCK, SCALES_HEAD, FORMAT,
        )  # fmt: skip
        k = unpack(codes, scales, FORMAT, E4M3, PTX)
        v = unpack(v_codes, v_scales, FORMAT, E4M3, PTX)
        out, peak, mass = attend(q, k, v, seen, factor, False)
        mask = here & live
        out_rows = (pair * GROUP + member) * D
        tl.store(part_out_ptr + out_rows[:, None] + d[None, :], out.to(tl.bfloat16), mask=mask[:, None])
        stats = part_stats_ptr + pair * (2 * GROUP) + member
        tl.store(stats, peak, mask=mask)
        tl.store(stats + GROUP, mass, mask=mask)
        current = tl.min(tl.where(key > current, key, _NO_BLOCK), 0)
