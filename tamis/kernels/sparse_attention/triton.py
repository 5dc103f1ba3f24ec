"""Sparse attention in Triton: what it serves, which way, and the launches.

What the kernels share, and why a query has the same bits by every way, is in `triton_tile`. Three ways:

- query-outer (`QueryWay` of one token): a program walks the blocks of one token and KV head;
- query tiles (`QueryWay` of more): of several neighbours, over the union of their blocks;
- KV-outer (`OuterWay`): a program takes the queries that chose one block, and leaves partials to a second launch.

A query-outer or tile program may also take a few blocks only and leave partials (`QueryWay.steps`), which spreads few
tokens over many programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from tamis.kernels.lane import Lane
from tamis.kernels.sparse_attention.triton_outer import key_kernel, outer_kernel
from tamis.kernels.sparse_attention.triton_query import combine_kernel, query_kernel, union_kernel
from tamis.kernels.sparse_attention.triton_tile import UNDO_EXACT, round_kernel
from tamis.kernels.triton_device import interpreted

DIM = 128
MAX_GROUP = 16
# Rows of the tensor core's smallest tile, and those from which a tile's rows stand on its long side.
_LEAST_ROWS = 16
_LONG_SIDE_ROWS = 64


@dataclass(frozen=True)
class QueryWay:
    """Programs own queries.

    Attributes:
        tokens: neighbouring tokens of a program, which reads a block that several of them chose once.
        steps: blocks that a program takes before the next program does; 0: all of them, and no second launch.
        num_warps: of the kernel.
    """

    tokens: int
    steps: int
    num_warps: int = 8


@dataclass(frozen=True)
class OuterWay:
    """Programs own blocks.

    Attributes:
        rows: queries times heads of a program.
        num_warps: of the kernel.
        registers: of a thread at most, so that more programs share a processor; None leaves it to the compiler.
    """

    rows: int
    num_warps: int
    registers: int | None = None


Way = QueryWay | OuterWay

# So many tokens of one request make windows of a block's queries full, and pay for sorting and partials.
_MANY_NEIGHBOURS = 1024
# Partials of one launch. 8,192 tokens of M3 (64 heads, 16 blocks) need 2.21 GB.
_SCRATCH_BYTES = 2_250_000_000


def way(neighbours: int) -> Way:
    """The way for a step, of which at most `neighbours` tokens stand together in a request.

    Ways that merge partials in registers round otherwise than those that merge them from memory, so only the latter
    are chosen among: a token then has the same bits whatever stands beside it.
    """
    return OuterWay(128, 8, 128) if neighbours >= _MANY_NEIGHBOURS else QueryWay(1, 1)


def refusal(q: Tensor, k_lane: Lane, v_lane: Lane, selection: Tensor) -> str:
    """Why these kernels do not serve a call; "" when they do."""
    group = q.shape[1] // selection.shape[1]
    if q.shape[2] != DIM or k_lane.codes.shape[2] != 128:
        return f"heads of {q.shape[2]} and blocks of {k_lane.codes.shape[2]}; only 128 and 128"
    if group > MAX_GROUP:
        return f"{group} query heads a KV head; at most {MAX_GROUP}"
    if q.dtype not in (torch.bfloat16, torch.float32):
        return f"queries in {q.dtype}; only bfloat16 and float32"
    if (k_lane.variant, k_lane.codes.stride()) != (v_lane.variant, v_lane.codes.stride()):
        return "keys and values in different formats or rows"
    for lane in (k_lane, v_lane):
        for part in (lane.codes, lane.scales):
            if part is None:
                continue
            if part.stride()[1:] != part[:1].contiguous().stride()[1:]:
                return "a lane whose blocks are not contiguous"
            if part.data_ptr() % 16 or part.stride(0) * part.element_size() % 16:
                return "a lane whose blocks are not aligned to 16 bytes"
    return ""


def sparse_attention(
    q: Tensor,
    k_lane: Lane,
    v_lane: Lane,
    selection: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    scale: float,
    *,
    neighbours: int = 1,
    config: Way | None = None,
) -> Tensor:
    """See `cpu.sparse_attention`; here sums are fp32, products bf16 (fp16 under the e4m3 contract), weights too.

    Args:
        q: [T, Hq, 128] bf16 or fp32, Hq at most 16 · Hkv.
        k_lane, v_lane: one format: "bfloat16", "fp8" or "nvfp4".
        selection: [T, Hkv, S] int64 or int32, ascending, −1 padded.
        block_tables: [T, n] int64 or int32, last dim contiguous.
        positions: [T] int64.
        scale: positive.
        neighbours: consecutive tokens of one request, at most: a hint for speed.
        config: None takes `way`. No way changes a bit of the result.

    Returns:
        [T, Hq, 128] in q's dtype; zeros for a token without any block. No launch depends on a length or a selection.

    Raises:
        ValueError: scale is not positive.
    """
    if not scale > 0.0:
        raise ValueError(f"scale is {scale}, but must be positive: the largest score is taken before it is applied")
    num_tokens, num_heads, _ = q.shape
    kv_heads, slots = selection.shape[1:]
    chosen = config or way(neighbours)
    q, selection, positions = q.contiguous(), selection.contiguous(), positions.contiguous()
    out = torch.empty_like(q)
    if num_tokens:
        constants = {**shape_constants(k_lane, num_heads // kv_heads, kv_heads, slots), "PTX": not interpreted()}
        factor = scale * math.log2(math.e) * constants["UNDO"]
        for tokens in _token_tiles(chosen, num_tokens, num_heads * slots):
            call = (selection[tokens], block_tables[tokens], positions[tokens], out[tokens], factor, constants)
            if isinstance(chosen, OuterWay):
                _outer(chosen, q[tokens], _operands(k_lane, v_lane), *call)
            else:
                _query(chosen, q[tokens], _operands(k_lane, v_lane), *call)
    return out


def shape_constants(lane: Lane, group: int, kv_heads: int, slots: int) -> dict[str, Any]:
    """Constants of the kernels that follow from a model and its rows."""
    codes = lane.codes if lane.format == "bfloat16" else lane.codes.view(torch.uint8).view(torch.int64)
    scales = codes if lane.scales is None else lane.scales
    exact = lane.variant == "nvfp4 exact"
    return {
        "HKV": kv_heads,
        "GROUP": group,
        "SLOTS": slots,
        "SLOTS_PADDED": triton.next_power_of_2(slots),
        "CODES_BLOCK": codes.stride(0),
        "CODES_HEAD": codes.stride(1),
        "SCALES_BLOCK": scales.stride(0),
        "SCALES_HEAD": scales.stride(1),
        "FORMAT": lane.format,
        "E4M3": lane.variant == "nvfp4 e4m3",
        "UNDO": UNDO_EXACT.value if exact else 1.0,
    }


def query_constants(chosen: QueryWay, group: int) -> dict[str, Any]:
    """Constants of `query_kernel` that follow from the way."""
    group_padded = max(triton.next_power_of_2(group), _LEAST_ROWS // chosen.tokens)
    return {
        "TOKENS": chosen.tokens,
        "STEPS": chosen.steps,
        "GROUP_PADDED": group_padded,
        "SWAP": chosen.tokens * group_padded < _LONG_SIDE_ROWS,
    }


def outer_constants(chosen: OuterWay, group: int) -> dict[str, Any]:
    """Constants of `outer_kernel` that follow from the way."""
    return {"ROWS": chosen.rows, "GROUP_PADDED": triton.next_power_of_2(group)}


def _token_tiles(chosen: Way, num_tokens: int, pairs_of_token: int) -> Iterator[slice]:
    """Runs of tokens whose partials fit into the scratch."""
    tile = num_tokens
    if isinstance(chosen, OuterWay) or chosen.steps:
        tile = max(chosen.tokens if isinstance(chosen, QueryWay) else 1, _SCRATCH_BYTES // (pairs_of_token * 264))
    for start in range(0, num_tokens, tile):
        yield slice(start, start + tile)


def _operands(k_lane: Lane, v_lane: Lane) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """K's codes and scales, then V's: words of 64 bits (or bf16) and bytes; without scales the codes again."""
    parts: list[Tensor] = []
    for lane in (k_lane, v_lane):
        codes = lane.codes if lane.format == "bfloat16" else lane.codes.view(torch.uint8).view(torch.int64)
        parts += [codes, codes if lane.scales is None else lane.scales.view(torch.uint8)]
    return parts[0], parts[1], parts[2], parts[3]


def _partials(out: Tensor, selection: Tensor) -> tuple[Tensor, Tensor]:
    """Scratch: outputs [T, Hkv, S, group, 128] bf16; peaks and masses [T, Hkv, S, 2, group] fp32."""
    shape, group = selection.shape, out.shape[1] // selection.shape[1]
    return (
        out.new_empty((*shape, group, DIM), dtype=torch.bfloat16),
        out.new_empty((*shape, 2, group), dtype=torch.float32),
    )


def _combine(part_out: Tensor, part_stats: Tensor, selection: Tensor, out: Tensor, undo: float) -> None:
    num_tokens, kv_heads, slots, group, _ = part_out.shape
    rows = min(4, triton.next_power_of_2(group))
    combine_kernel[(num_tokens * kv_heads, triton.cdiv(group, rows))](
        part_out,
        part_stats,
        selection,
        out,
        HKV=kv_heads,
        GROUP=group,
        SLOTS=slots,
        ROWS=rows,
        UNDO=undo,
        num_warps=2,
    )


def _query(
    chosen: QueryWay,
    q: Tensor,
    lanes: tuple[Tensor, Tensor, Tensor, Tensor],
    selection: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    out: Tensor,
    factor: float,
    constants: dict[str, Any],
) -> None:
    num_tokens, kv_heads, slots = selection.shape
    tiles = triton.cdiv(num_tokens, chosen.tokens)
    entries = chosen.tokens * constants["SLOTS_PADDED"]
    blocks = members = counts = part_out = part_stats = out
    if chosen.tokens > 1:
        blocks = out.new_empty((tiles, kv_heads, entries), dtype=torch.int64)
        members = out.new_empty((tiles, kv_heads, entries, chosen.tokens), dtype=torch.int32)
        counts = out.new_empty((tiles, kv_heads), dtype=torch.int32)
        union_kernel[(tiles, kv_heads)](
            selection,
            block_tables,
            positions,
            blocks,
            members,
            counts,
            num_tokens,
            block_tables.stride(0),
            HKV=kv_heads,
            SLOTS=slots,
            SLOTS_PADDED=constants["SLOTS_PADDED"],
            TOKENS=chosen.tokens,
            # All entries are compared with all: 8 to 32 pairs a thread, in registers.
            num_warps=min(16, max(4, entries * entries // 1024)),
        )
    if chosen.steps:
        part_out, part_stats = _partials(out, selection)
    query_kernel[(tiles, kv_heads, triton.cdiv(entries, chosen.steps) if chosen.steps else 1)](
        q,
        *lanes,
        selection,
        block_tables,
        positions,
        blocks,
        members,
        counts,
        out,
        part_out,
        part_stats,
        num_tokens,
        block_tables.stride(0),
        factor,
        **constants,
        **query_constants(chosen, constants["GROUP"]),
        num_warps=chosen.num_warps,
    )
    if chosen.steps:
        _combine(part_out, part_stats, selection, out, constants["UNDO"])


def _outer(
    chosen: OuterWay,
    q: Tensor,
    lanes: tuple[Tensor, Tensor, Tensor, Tensor],
    selection: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    out: Tensor,
    factor: float,
    constants: dict[str, Any],
) -> None:
    kv_heads, slots = selection.shape[1:]
    pairs = selection.numel()
    keys = selection.new_empty(pairs, dtype=torch.int32)
    key_kernel[(triton.cdiv(pairs, 1024),)](
        selection,
        block_tables,
        keys,
        pairs,
        block_tables.stride(0),
        HKV=kv_heads,
        SLOTS=slots,
        BLOCK=1024,
        num_warps=4,
    )
    keys, order = torch.sort(keys)
    if constants["E4M3"]:
        rounded = torch.empty_like(q, dtype=torch.float16)
        round_kernel[(triton.cdiv(q.numel(), 4096),)](q, rounded, q.numel(), BLOCK=4096, num_warps=8)
        q = rounded
    part_out, part_stats = _partials(out, selection)
    of_way = outer_constants(chosen, constants["GROUP"])
    outer_kernel[(triton.cdiv(pairs, chosen.rows // of_way["GROUP_PADDED"]),)](
        q,
        *lanes,
        selection,
        positions,
        keys,
        order,
        part_out,
        part_stats,
        pairs,
        factor,
        **{name: value for name, value in constants.items() if name not in ("SLOTS_PADDED", "UNDO")},
        **of_way,
        num_warps=chosen.num_warps,
        maxnreg=chosen.registers,
    )
    _combine(part_out, part_stats, selection, out, constants["UNDO"])
