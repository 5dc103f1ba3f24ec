"""`linear` on packed weights in Triton: bf16 activations, fp32 sums, weights unpacked inside the product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tamis.kernels.packed_operands import operands, padded
from tamis.kernels.packed_tile import finish, multiply, phase_row
from tamis.kernels.packed_weight import PackedWeight
from tamis.kernels.triton_device import interpreted


@dataclass(frozen=True)
class LinearTiles:
    """Block sizes of one launch: a program computes `block_n` outputs of `block_m` tokens, `block_k` columns a step.

    `phase` spends a launch on bringing the activations into phased order instead of reordering them in each program.
    """

    block_n: int
    block_m: int
    block_k: int
    phase: bool
    num_warps: int
    num_stages: int


def tiles(tokens: int) -> LinearTiles:
    """Block sizes for a number of tokens; results do not depend on them."""
    if tokens <= 64:
        # With one token a program reorders its own; 64 of them are better reordered once for all programs.
        return LinearTiles(64, max(16, triton.next_power_of_2(tokens)), 256, tokens > 16, 4, 4)
    return LinearTiles(128, 128, 128, True, 8, 3)


@triton.jit(do_not_specialize=["tokens"])
def _phase_kernel(x_ptr, out_ptr, tokens, K: tl.constexpr, BLOCK: tl.constexpr):
    phase_row(x_ptr, out_ptr, tl.program_id(0), K, BLOCK)


def phase(x: Tensor) -> Tensor:
    """x: [T, K] bf16 → [T, K rounded up to 128] in phased order (see `packed_tile`); columns past K stay unwritten."""
    out = torch.empty((x.shape[0], padded(x.shape[1])), dtype=x.dtype, device=x.device)
    if x.shape[0]:
        _phase_kernel[(x.shape[0],)](x, out, x.shape[0], K=x.shape[1], BLOCK=1024, num_warps=4)
    return out


@triton.jit(do_not_specialize=["tokens"])
def linear_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    row_scales_ptr,
    out_ptr,
    tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PHASED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
):
    """One [BLOCK_N, BLOCK_M] tile of out [tokens, N] bf16.

    Programs run through bands of 8 token tiles, so that a band's activations stay in L2 while weights pass.
    """
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    tiles_m = tl.cdiv(tokens, BLOCK_M)
    band = tl.program_id(0) // (8 * tiles_n)
    in_band = tl.minimum(tiles_m - band * 8, 8)
    place = tl.program_id(0) % (8 * tiles_n)
    rows = place // in_band * BLOCK_N + tl.arange(0, BLOCK_N)
    token = (band * 8 + place % in_band) * BLOCK_M + tl.arange(0, BLOCK_M)
    acc = multiply(
        codes_ptr, scales_ptr, rows, rows < N, x_ptr, token.to(tl.int64), token < tokens,
        K, BLOCK_K, FORMAT, PHASED, STAGES, PTX,
    )  # fmt: skip
    acc = finish(acc, row_scales_ptr, rows, rows < N, FORMAT)
    out_ptrs = out_ptr + token.to(tl.int64)[None, :] * N + rows[:, None]
    tl.store(out_ptrs, acc.to(tl.bfloat16), mask=(token < tokens)[None, :] & (rows < N)[:, None])


def linear(x: Tensor, weight: PackedWeight, config: LinearTiles | None = None) -> Tensor:
    """See `cpu.linear`.

    Args:
        x: [..., K] bf16.
        weight: [N, K], contiguous.
        config: block sizes; None takes `tiles`.

    Returns:
        [..., N] bf16. Reads the packed bytes once for every `block_m` tokens.

    Raises:
        ValueError: the weight's tensors are not contiguous.
    """
    n, k = weight.shape
    rows = x.reshape(-1, k)
    tokens = rows.shape[0]
    out = torch.empty((tokens, n), dtype=x.dtype, device=x.device)
    if tokens:
        t = config or tiles(tokens)
        linear_kernel[(triton.cdiv(n, t.block_n) * triton.cdiv(tokens, t.block_m),)](
            phase(rows.contiguous()) if t.phase else rows.contiguous(),
            *operands(weight),
            out,
            tokens,
            N=n,
            K=k,
            FORMAT=weight.format,
            PHASED=t.phase,
            BLOCK_N=t.block_n,
            BLOCK_M=t.block_m,
            BLOCK_K=t.block_k,
            STAGES=t.num_stages,
            PTX=not interpreted(),
            num_warps=t.num_warps,
        )
    return out.reshape(*x.shape[:-1], n)
