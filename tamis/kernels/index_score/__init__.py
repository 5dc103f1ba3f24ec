"""Block scores of the index branch: `score[t, h, b] = max over visible j in block b of q[t, h] · k[j]`, fp32.

`block_scores` serves one request anywhere, on a CPU by the native kernel where the registry finds it. Where `on_device`
says so, a step is served by `decode_scores` (many requests with few tokens each in one launch) and `prefill_scores`
(one request with many), which leave lengths on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import cpu_extension, registry
from tamis.kernels.index_score import cpu, native
from tamis.kernels.lane import Lane
from tamis.kernels.lane import variant as lane_variant

__all__ = ["MAX_DECODE_ROWS", "block_scores", "decode_scores", "on_device", "prefill_scores", "variant"]

# (token, head) pairs of one request that one program of `decode_scores` holds.
MAX_DECODE_ROWS = 64


def variant(format: str, contract: str, dtype: torch.dtype, heads: int, dim: int, device: str) -> str:
    """What has to be computed, as the registry's entries name it: the format and contract of the keys, what is unusual.

    Args:
        format, contract: of the lane.
        dtype, heads, dim: of the queries.
        device: of both; on a CPU only an odd dim is unusual.
    """
    name = lane_variant(format, contract)
    if device == "cpu":
        return name if cpu_extension.fits(dim) else f"{name} of dim {dim}"
    if dtype != torch.bfloat16:
        name += f" in {str(dtype).removeprefix('torch.')}"
    if dim != 128:
        name += f" of dim {dim}"
    return name if heads <= MAX_DECODE_ROWS else f"{name} with {heads} heads"


def block_scores(q: Tensor, lane: Lane, block_table: Tensor, positions: Tensor) -> Tensor:
    """See `cpu.block_scores`."""
    device = q.device.type
    asked = variant(lane.format, lane.contract, q.dtype, q.shape[1], q.shape[2], device)
    if registry.select("index_score", device, asked).name == "native":
        return native.block_scores(q, lane, block_table, positions)
    return cpu.block_scores(q, lane, block_table, positions)


def on_device(q: Tensor, lane: Lane) -> bool:
    """Whether `decode_scores` and `prefill_scores` serve these queries ([T, heads, dim]) and keys."""
    asked = variant(lane.format, lane.contract, q.dtype, q.shape[1], q.shape[2], q.device.type)
    return registry.select("index_score", q.device.type, asked).name == "triton"


def decode_scores(
    q: Tensor,
    lane: Lane,
    block_tables: Tensor,
    starts: Tensor,
    positions: Tensor,
    out: Tensor,
    *,
    first_token: int,
    max_tokens: int,
) -> None:
    """See `triton.decode_scores`."""
    from tamis.kernels.index_score import triton

    triton.decode_scores(q, lane, block_tables, starts, positions, out, first_token=first_token, max_tokens=max_tokens)


def prefill_scores(q: Tensor, lane: Lane, block_table: Tensor, positions: Tensor, out: Tensor) -> None:
    """See `triton.prefill_scores`."""
    from tamis.kernels.index_score import triton

    triton.prefill_scores(q, lane, block_table, positions, out)
