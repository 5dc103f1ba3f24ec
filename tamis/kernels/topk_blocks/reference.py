"""Selection by sorting Python tuples."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def select_blocks(scores: Tensor, positions: Tensor, *, k: int, init: int, local: int) -> Tensor:
    """See `cpu.select_blocks`."""
    nan_score = torch.tensor(-1e30).item()  # as fp32, so that it ties with a score of −1e30
    out = torch.full((*scores.shape[:2], k), -1, dtype=torch.int64)
    for t, position in enumerate(positions.tolist()):
        visible = position // 128 + 1
        for h in range(scores.shape[1]):
            row = [nan_score if math.isnan(s) else s for s in scores[t, h, :visible].tolist()]
            forced = {b for b in range(visible) if b < init or b >= visible - local}
            order = sorted(range(visible), key=lambda b: (b not in forced, -row[b], b))
            chosen = sorted(order[:k])
            out[t, h, : len(chosen)] = torch.tensor(chosen)
    return out
