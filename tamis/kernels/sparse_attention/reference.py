"""Sparse attention query by query, in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.lane import Lane


def sparse_attention(
    q: Tensor, k_lane: Lane, v_lane: Lane, selection: Tensor, block_tables: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """See `cpu.sparse_attention`."""
    num_kv_heads = selection.shape[1]
    query = k_lane.query(q).double().unflatten(1, (num_kv_heads, -1))
    out = torch.empty_like(query)
    for t, position in enumerate(positions.tolist()):
        for h in range(num_kv_heads):
            keys, values = [], []
            for b in selection[t, h].tolist():
                if b < 0:
                    continue
                visible = min(128, position - b * 128 + 1)
                keys.append(k_lane.read(block_tables[t, b], h)[:visible].double())
                values.append(v_lane.read(block_tables[t, b], h)[:visible].double())
            weights = torch.softmax(query[t, h] @ torch.cat(keys).T * scale, dim=-1)
            out[t, h] = weights @ torch.cat(values)
    return out.flatten(1, 2)
