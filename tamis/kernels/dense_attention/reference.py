"""Dense attention query by query, in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.lane import Lane


def dense_attention(
    q: Tensor, k_lane: Lane, v_lane: Lane, block_table: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """See `cpu.dense_attention`."""
    num_kv_heads = k_lane.codes.shape[1]
    query = k_lane.query(q).double().unflatten(1, (num_kv_heads, -1))
    out = torch.empty_like(query)
    for t, position in enumerate(positions.tolist()):
        blocks = block_table[: position // 128 + 1]
        for h in range(num_kv_heads):
            keys = k_lane.read(blocks, h).flatten(0, 1)[: position + 1].double()
            values = v_lane.read(blocks, h).flatten(0, 1)[: position + 1].double()
            out[t, h] = torch.softmax(query[t, h] @ keys.T * scale, dim=-1) @ values
    return out.flatten(1, 2)
