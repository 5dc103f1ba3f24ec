"""The whole mixture in Triton: packed weights, the shared expert in the same launches, no length on the host.

Four launches: `plan` (order the pairs), gate and up with SwiGLU, down, and the weighted sum of each token's experts in
the order of its slots. Sums are bf16 products in fp32; what passes between launches is bf16. A token's result depends
on no other token. First in each product come the shared expert's tiles, whose rows are all the tokens: they are the
longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tamis.kernels.moe.plan import plan
from tamis.kernels.packed_operands import operands, padded
from tamis.kernels.packed_tile import finish, multiply, phased
from tamis.kernels.packed_weight import Weight, weight_format
from tamis.kernels.triton_device import interpreted


@dataclass(frozen=True)
class MoETiles:
    """Block sizes of the two products.

    Attributes:
        block_n: rows of a weight matrix a program (in gate_up half of them gate, half up).
        block_m: places of a full routed tile.
        remainder_m: places of the tile that computes what is left of an expert when that is no more; divides the work
            of unpacking by fewer tokens, but wastes less of the product. `block_m` means no such tile.
        shared_m: tokens of a tile of the shared expert.
        block_k: columns a step.
        phase: activations are written in phased order instead of being reordered in each program.
    """

    block_n: int
    block_m: int
    remainder_m: int
    shared_m: int
    block_k: int
    phase: bool
    num_warps: int
    num_stages: int


def tiles(tokens: int, formats: tuple[str, str]) -> MoETiles:
    """Block sizes for a number of tokens and the formats (routed, shared); results do not depend on them."""
    if tokens <= 4:
        return MoETiles(64, 16, 16, 16, 256, True, 4, 4)
    if tokens <= 64:
        # Narrow tiles, so that several programs share a processor. Plain weights are two to four times as wide.
        return MoETiles(64, 16, 16, 16, 128 if "plain" in formats else 256, True, 4, 3)
    if tokens <= 1024:
        return MoETiles(128, 64, 16, 64, 128, True, 8, 3)
    return MoETiles(128, 128, 32, 128, 128, True, 4, 2)


@triton.jit
def _gate_up_tile(
    x_ptr,
    x_rows,
    row_mask,
    codes_ptr,
    scales_ptr,
    row_scales_ptr,
    out_ptr,
    out_rows,
    tile_n,
    alpha,
    limit,
    H: tl.constexpr,
    INNER: tl.constexpr,
    FORMAT: tl.constexpr,
    PHASED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
):
    """out[out_rows, BLOCK_N / 2 columns] = SwiGLU-OAI(gate, up) of x[x_rows]; x and out in phased order if PHASED."""
    # Of 16 rows 8 are gate rows and 8 the up rows that belong to them: the tensor core leaves rows r and r + 8 in one
    # thread, so the two meet without a shuffle.
    r = tl.arange(0, BLOCK_N)
    inner = tile_n * (BLOCK_N // 2) + r // 16 * 8 + r % 8
    rows = inner + (r % 16 // 8) * INNER
    acc = multiply(
        codes_ptr, scales_ptr, rows, inner < INNER, x_ptr, x_rows, row_mask, H, BLOCK_K, FORMAT, PHASED, STAGES, PTX
    )
    acc = finish(acc, row_scales_ptr, rows, inner < INNER, FORMAT)
    HALF: tl.constexpr = BLOCK_N // 2
    BLOCK_M: tl.constexpr = x_rows.shape[0]
    pairs = tl.permute(tl.reshape(acc, (BLOCK_N // 16, 2, 8, BLOCK_M)), (0, 2, 3, 1))
    gate, up = tl.split(pairs)
    gate = tl.minimum(tl.reshape(gate, (HALF, BLOCK_M)), limit)
    up = tl.minimum(tl.maximum(tl.reshape(up, (HALF, BLOCK_M)), -limit), limit)
    hidden = gate / (1.0 + tl.exp(-alpha * gate)) * (up + 1.0)
    column = tile_n * HALF + tl.arange(0, HALF)
    if PHASED:
        out_ptrs = out_ptr + out_rows[None, :] * ((INNER + 127) // 128 * 128) + phased(column)[:, None]
    else:
        out_ptrs = out_ptr + out_rows[None, :] * INNER + column[:, None]
    tl.store(out_ptrs, hidden.to(tl.bfloat16), mask=row_mask[None, :] & (column < INNER)[:, None])


@triton.jit(do_not_specialize=["tokens"])
def gate_up_kernel(
    x_ptr,
    phased_ptr,
    codes_ptr,
    scales_ptr,
    row_scales_ptr,
    shared_codes_ptr,
    shared_scales_ptr,
    shared_row_scales_ptr,
    out_ptr,
    shared_out_ptr,
    tiles_ptr,
    pairs_ptr,
    tokens,
    alpha,
    limit,
    TOP_K: tl.constexpr,
    H: tl.constexpr,
    INNER: tl.constexpr,
    SHARED: tl.constexpr,
    FORMAT: tl.constexpr,
    SHARED_FORMAT: tl.constexpr,
    PHASE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    REMAINDER_M: tl.constexpr,
    SHARED_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
):
    """SwiGLU of every pair, [T·k, INNER], by place, and of the shared expert, [T, SHARED]."""
    HALF: tl.constexpr = BLOCK_N // 2
    shared_n: tl.constexpr = (SHARED + HALF - 1) // HALF
    tiles_n: tl.constexpr = (INNER + HALF - 1) // HALF
    programs_shared = tl.cdiv(tokens, SHARED_M) * shared_n
    program = tl.program_id(0)
    if program < programs_shared:
        token = program // shared_n * SHARED_M + tl.arange(0, SHARED_M)
        rows = token.to(tl.int64)
        source = x_ptr if SHARED_FORMAT == "plain" else phased_ptr
        _gate_up_tile(
            source, rows, token < tokens, shared_codes_ptr, shared_scales_ptr, shared_row_scales_ptr,
            shared_out_ptr, rows, program % shared_n, alpha, limit,
            H, SHARED, SHARED_FORMAT, PHASE and SHARED_FORMAT != "plain", BLOCK_N, BLOCK_K, STAGES, PTX,
        )  # fmt: skip
    else:
        tile = (program - programs_shared) // tiles_n
        tile_n = (program - programs_shared) % tiles_n
        places = tl.load(tiles_ptr + tile * 3 + 2)
        if places > 0:
            expert = tl.load(tiles_ptr + tile * 3).to(tl.int64)
            first = tl.load(tiles_ptr + tile * 3 + 1)
            WORD: tl.constexpr = 1 if FORMAT == "plain" else 8
            GROUP: tl.constexpr = 16 if FORMAT == "nvfp4" else 32
            codes = codes_ptr + expert * (2 * INNER * (H // WORD))
            scales = scales_ptr + expert * (2 * INNER * (H // GROUP))
            row_scales = row_scales_ptr + expert * (2 * INNER)
            source = x_ptr if FORMAT == "plain" else phased_ptr
            if REMAINDER_M < BLOCK_M and places <= REMAINDER_M:
                few = tl.arange(0, REMAINDER_M)
                few_members = tl.load(pairs_ptr + first + few, mask=few < places, other=0) // TOP_K
                _gate_up_tile(
                    source, few_members.to(tl.int64), few < places, codes, scales, row_scales,
                    out_ptr, (first + few).to(tl.int64), tile_n, alpha, limit,
                    H, INNER, FORMAT, PHASE and FORMAT != "plain", BLOCK_N, BLOCK_K, STAGES, PTX,
                )  # fmt: skip
            else:
                i = tl.arange(0, BLOCK_M)
                members = tl.load(pairs_ptr + first + i, mask=i < places, other=0) // TOP_K
                _gate_up_tile(
                    source, members.to(tl.int64), i < places, codes, scales, row_scales,
                    out_ptr, (first + i).to(tl.int64), tile_n, alpha, limit,
                    H, INNER, FORMAT, PHASE and FORMAT != "plain", BLOCK_N, BLOCK_K, STAGES, PTX,
                )  # fmt: skip


@triton.jit
def _down_tile(
    x_ptr,
    x_rows,
    row_mask,
    codes_ptr,
    scales_ptr,
    row_scales_ptr,
    out_ptr,
    tile_n,
    H: tl.constexpr,
    INNER: tl.constexpr,
    FORMAT: tl.constexpr,
    PHASED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
):
    """out[x_rows, BLOCK_N columns] = x[x_rows] times weight rows."""
    rows = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = multiply(
        codes_ptr, scales_ptr, rows, rows < H, x_ptr, x_rows, row_mask, INNER, BLOCK_K, FORMAT, PHASED, STAGES, PTX
    )
    acc = finish(acc, row_scales_ptr, rows, rows < H, FORMAT)
    out_ptrs = out_ptr + x_rows[None, :] * H + rows[:, None]
    tl.store(out_ptrs, acc.to(tl.bfloat16), mask=row_mask[None, :] & (rows < H)[:, None])


@triton.jit(do_not_specialize=["tokens"])
def down_kernel(
    x_ptr,
    shared_x_ptr,
    codes_ptr,
    scales_ptr,
    row_scales_ptr,
    shared_codes_ptr,
    shared_scales_ptr,
    shared_row_scales_ptr,
    out_ptr,
    shared_out_ptr,
    tiles_ptr,
    tokens,
    H: tl.constexpr,
    INNER: tl.constexpr,
    SHARED: tl.constexpr,
    FORMAT: tl.constexpr,
    SHARED_FORMAT: tl.constexpr,
    PHASE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    REMAINDER_M: tl.constexpr,
    SHARED_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
):
    """down of every place, [T·k, H], and of the shared expert, [T, H]."""
    tiles_n: tl.constexpr = (H + BLOCK_N - 1) // BLOCK_N
    programs_shared = tl.cdiv(tokens, SHARED_M) * tiles_n
    program = tl.program_id(0)
    tile_n = program % tiles_n
    if program < programs_shared:
        token = program // tiles_n * SHARED_M + tl.arange(0, SHARED_M)
        _down_tile(
            shared_x_ptr, token.to(tl.int64), token < tokens, shared_codes_ptr, shared_scales_ptr,
            shared_row_scales_ptr, shared_out_ptr, tile_n,
            H, SHARED, SHARED_FORMAT, PHASE and SHARED_FORMAT != "plain", BLOCK_N, BLOCK_K, STAGES, PTX,
        )  # fmt: skip
    else:
        tile = (program - programs_shared) // tiles_n
        places = tl.load(tiles_ptr + tile * 3 + 2)
        if places > 0:
            expert = tl.load(tiles_ptr + tile * 3).to(tl.int64)
            first = tl.load(tiles_ptr + tile * 3 + 1)
            WORD: tl.constexpr = 1 if FORMAT == "plain" else 8
            GROUP: tl.constexpr = 16 if FORMAT == "nvfp4" else 32
            codes = codes_ptr + expert * (H * (INNER // WORD))
            scales = scales_ptr + expert * (H * (INNER // GROUP))
            row_scales = row_scales_ptr + expert * H
            if REMAINDER_M < BLOCK_M and places <= REMAINDER_M:
                few = tl.arange(0, REMAINDER_M)
                _down_tile(
                    x_ptr, (first + few).to(tl.int64), few < places, codes, scales, row_scales, out_ptr, tile_n,
                    H, INNER, FORMAT, PHASE and FORMAT != "plain", BLOCK_N, BLOCK_K, STAGES, PTX,
                )  # fmt: skip
            else:
                i = tl.arange(0, BLOCK_M)
                _down_tile(
                    x_ptr, (first + i).to(tl.int64), i < places, codes, scales, row_scales, out_ptr, tile_n,
                    H, INNER, FORMAT, PHASE and FORMAT != "plain", BLOCK_N, BLOCK_K, STAGES, PTX,
                )  # fmt: skip


@triton.jit
def combine_kernel(
    routed_ptr,
    shared_ptr,
    places_ptr,
    weights_ptr,
    out_ptr,
    scale,
    TOP_K: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[t] = scale · Σ over slots of weight · routed[place] + shared[t], slots in order, in fp32."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in tl.static_range(TOP_K):
        place = tl.load(places_ptr + token * TOP_K + slot).to(tl.int64)
        weight = tl.load(weights_ptr + token * TOP_K + slot)
        total += weight * tl.load(routed_ptr + place * H + column, mask=inside, other=0.0).to(tl.float32)
    shared = tl.load(shared_ptr + token * H + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * H + column, (scale * total + shared).to(tl.bfloat16), mask=inside)


def moe(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    gate_up: Weight,
    down: Weight,
    shared_gate_up: Weight,
    shared_down: Weight,
    *,
    scale: float,
    alpha: float,
    limit: float,
    config: MoETiles | None = None,
) -> Tensor:
    """See `cpu.moe`.

    Args:
        x: [T, H] bf16; gate_up and down of one format, shared_gate_up and shared_down of one format; all contiguous.
        config: block sizes; None takes `tiles`.

    Returns:
        [T, H] bf16. Reads the packed bytes of an expert once for every `block_m` tokens that chose it, and the shared
        expert's once for every `shared_m`; besides, T·k·(I + H) bf16 values are written and read.

    Raises:
        ValueError: a weight's tensors are not contiguous.
    """
    tokens, hidden = x.shape
    out = torch.empty_like(x)
    if not tokens:
        return out
    x = x.contiguous()
    top_k = expert_ids.shape[1]
    experts, inner, shared = gate_up.shape[0], down.shape[-1], shared_down.shape[-1]
    formats = weight_format(gate_up), weight_format(shared_gate_up)
    t = config or tiles(tokens, formats)
    planned = plan(x, expert_ids.contiguous(), experts, t.block_m, phase=t.phase and formats != ("plain", "plain"))
    constants = {
        "H": hidden,
        "INNER": inner,
        "SHARED": shared,
        "FORMAT": formats[0],
        "SHARED_FORMAT": formats[1],
        "PHASE": t.phase,
        "BLOCK_N": t.block_n,
        "BLOCK_M": t.block_m,
        "REMAINDER_M": t.remainder_m,
        "SHARED_M": t.shared_m,
        "BLOCK_K": t.block_k,
        "STAGES": t.num_stages,
        "PTX": not interpreted(),
        "num_warps": t.num_warps,
    }
    pairs = tokens * top_k
    widths = [
        padded(width) if t.phase and form != "plain" else width
        for width, form in zip((inner, shared), formats, strict=True)
    ]
    routed_inner, shared_inner = x.new_empty((pairs, widths[0])), x.new_empty((tokens, widths[1]))
    half = t.block_n // 2
    shared_tiles, routed_tiles = triton.cdiv(tokens, t.shared_m), len(planned.tiles)
    gate_up_kernel[(shared_tiles * triton.cdiv(shared, half) + routed_tiles * triton.cdiv(inner, half),)](
        x,
        planned.phased,
        *operands(gate_up),
        *operands(shared_gate_up),
        routed_inner,
        shared_inner,
        planned.tiles,
        planned.pairs,
        tokens,
        alpha,
        limit,
        TOP_K=top_k,
        **constants,
    )
    routed_out, shared_out = x.new_empty((pairs, hidden)), torch.empty_like(x)
    down_kernel[((shared_tiles + routed_tiles) * triton.cdiv(hidden, t.block_n),)](
        routed_inner,
        shared_inner,
        *operands(down),
        *operands(shared_down),
        routed_out,
        shared_out,
        planned.tiles,
        tokens,
        **constants,
    )
    block = 1024
    combine_kernel[(tokens, triton.cdiv(hidden, block))](
        routed_out,
        shared_out,
        planned.places,
        weights.contiguous(),
        out,
        scale,
        TOP_K=top_k,
        H=hidden,
        BLOCK=block,
        num_warps=4,
    )
    return out
