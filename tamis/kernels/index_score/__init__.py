"""Block scores of the index branch: `score[t, h, b] = max over visible j in block b of q[t, h] · k[j]`, fp32.

`block_scores` serves one request anywhere. Where `on_device` says so, a step is served by `decode_scores` (many
requests with few tokens each in one launch) and `prefill_scores` (one request with many), which leave lengths on the
device.
"""

from __future__ import annotations

from torch import Tensor

from tamis.kernels import registry
from tamis.kernels.index_score.cpu import block_scores
from tamis.kernels.lane import Lane

__all__ = ["MAX_DECODE_ROWS", "block_scores", "decode_scores", "on_device", "prefill_scores", "variant"]

# (token, head) pairs of one request that one program of `decode_scores` holds.
MAX_DECODE_ROWS = 64


def variant(q: Tensor, lane: Lane) -> str:
    """What has to be computed, as the registry's entries name it: the lane's format and contract, what is unusual."""
    name = lane.format if lane.format != "nvfp4" or lane.contract == "exact" else f"nvfp4 {lane.contract}"
    if str(q.dtype) != "torch.bfloat16":
        name += f" in {q.dtype}"
    if q.shape[2] != 128:
        name += f" of dim {q.shape[2]}"
    return name if q.shape[1] <= MAX_DECODE_ROWS else f"{name} with {q.shape[1]} heads"


def on_device(q: Tensor, lane: Lane) -> bool:
    """Whether `decode_scores` and `prefill_scores` serve these queries ([T, heads, dim]) and keys."""
    return registry.select("index_score", q.device.type, variant(q, lane)).name == "triton"


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
