"""Full attention of one step, request by request."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.attention.plan import StepTables
from tamis.kernels.dense_attention import dense_attention
from tamis.kernels.lane import Lane


def attend_dense(q: Tensor, k_lane: Lane, v_lane: Lane, tables: StepTables, scale: float) -> Tensor:
    """q: [T, Hq, D] → [T, Hq, D] fp32: each query over all of its request's context up to itself."""
    return torch.cat(
        [
            dense_attention(
                q[s.start : s.start + s.length],
                k_lane,
                v_lane,
                tables.block_tables[row],
                tables.positions[s.start : s.start + s.length],
                scale,
            )
            for row, s in enumerate(tables.segments)
        ]
    )
