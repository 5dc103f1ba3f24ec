"""Exact softmax attention over each query's selected blocks, straight from the rows."""

from __future__ import annotations

from torch import Tensor

from tamis.kernels import cpu_extension, registry
from tamis.kernels.lane import Lane
from tamis.kernels.sparse_attention import cpu, native

__all__ = ["sparse_attention"]


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
) -> Tensor:
    """See `cpu.sparse_attention`; served by the native kernel or Triton's where the registry finds it and shapes fit.

    Args:
        neighbours: how many consecutive tokens belong to one request at most: a hint for speed, no part of the result.

    Returns:
        [T, Hq, D] fp32; from the Triton kernels in q's dtype.
    """
    name = registry.select("sparse_attention", q.device.type, k_lane.variant).name
    if name == "native" and cpu_extension.fits(q.shape[-1]):
        return native.sparse_attention(q, k_lane, v_lane, selection, block_tables, positions, scale)
    if name == "triton":
        from tamis.kernels.sparse_attention import triton

        if not triton.refusal(q, k_lane, v_lane, selection):
            return triton.sparse_attention(
                q, k_lane, v_lane, selection, block_tables, positions, scale, neighbours=neighbours
            )
    return cpu.sparse_attention(q, k_lane, v_lane, selection, block_tables, positions, scale)
