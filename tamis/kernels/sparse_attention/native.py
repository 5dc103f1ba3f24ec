"""Sparse attention by the C++ extension: a block is unpacked once for the tokens of a tile that chose it.

The function is `cpu.sparse_attention`; csrc/cpu/sparse_attention.h says how and in which order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import cpu_extension
from tamis.kernels.lane import Lane


def sparse_attention(
    q: Tensor,
    k_lane: Lane,
    v_lane: Lane,
    selection: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    scale: float,
    path: str = "auto",
) -> Tensor:
    """See `cpu.sparse_attention`.

    Args:
        path: "auto" takes the fastest that this CPU runs; "scalar" and "avx2" force one.

    Returns:
        [T, Hq, D] fp32. The same bits for a token whatever the other ones and torch's thread count; paths may differ
        from each other by rounding. Keeps one block of K and V a thread unpacked.

    Raises:
        RuntimeError: there is no extension.
        ValueError: shapes, strides, formats, block ids or a path that the kernel does not serve; says which.
    """
    native = cpu_extension.module()
    if q.device.type != "cpu" or k_lane.codes.device.type != "cpu" or v_lane.codes.device.type != "cpu":
        raise ValueError(
            f"q, K and V are on {q.device}, {k_lane.codes.device} and {v_lane.codes.device}, but must be on the CPU"
        )
    out = torch.empty(q.shape, dtype=torch.float32)
    native.sparse_attention(
        k_lane.query(q.detach()).contiguous().numpy(),
        *_lane(k_lane),
        *_lane(v_lane),
        selection.long().contiguous().numpy(),
        block_tables.long().numpy(),
        positions.long().contiguous().numpy(),
        scale,
        out.numpy(),
        torch.get_num_threads(),
        path,
    )
    return out


def _lane(lane: Lane) -> tuple:
    """Codes and scales as numpy views of bytes (no copy, and numpy knows neither bfloat16 nor float8), and a name."""
    scales = None if lane.scales is None else lane.scales.view(torch.uint8).numpy()
    return lane.codes.view(torch.uint8).numpy(), scales, lane.variant
