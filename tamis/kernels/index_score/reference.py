"""Block scores pair by pair, dots in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.lane import Lane


def block_scores(q: Tensor, lane: Lane, block_table: Tensor, positions: Tensor) -> Tensor:
    """See `cpu.block_scores`."""
    num_blocks = int(positions.max()) // 128 + 1
    out = torch.full((*q.shape[:2], num_blocks), -torch.inf)
    query = lane.query(q)
    for b in range(num_blocks):
        keys = lane.read(block_table[b], 0).double()
        for t, position in enumerate(positions.tolist()):
            visible = position - b * 128 + 1
            if visible > 0:
                out[t, :, b] = (query[t].double() @ keys[:visible].T).amax(-1).float()
    return out
