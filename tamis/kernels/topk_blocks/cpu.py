"""Selection by one stable sort."""

from __future__ import annotations

import torch
from torch import Tensor

_NAN_SCORE = -1e30
_FINITE_MAX = torch.finfo(torch.float32).max


def select_blocks(scores: Tensor, positions: Tensor, *, k: int, init: int, local: int) -> Tensor:
    """Choose k blocks a query token and head.

    The order is total: forced blocks (the first `init`, the last `local` visible ones), then score descending, then
    lower block id; a NaN score counts as −1e30. Blocks past the query's own are never chosen.

    Args:
        scores: [T, heads, n] fp32.
        positions: [T] int64.
        k, init, local: of the model; init + local ≤ k.

    Returns:
        [T, heads, k] int64 block ids in ascending order, −1 padded at the end.
    """
    num_blocks = scores.shape[-1]
    block = torch.arange(num_blocks, device=scores.device)
    own = (positions // 128)[:, None, None]
    key = torch.where(scores.isnan(), _NAN_SCORE, scores).clamp(-_FINITE_MAX, _FINITE_MAX)
    key = key.masked_fill((block < init) | (block > own - local), torch.inf)
    key = key.masked_fill(block > own, -torch.inf)
    # Stable, so equal keys stay in ascending block id.
    best = torch.sort(key, dim=-1, descending=True, stable=True).indices[..., :k]
    best = torch.where(best > own, num_blocks, best).sort(dim=-1).values
    best = torch.where(best == num_blocks, -1, best)
    return torch.nn.functional.pad(best, (0, k - best.shape[-1]), value=-1)
