"""Attention over one block, and the merging of blocks by log-sum-exp: the two steps that every attention here shares.

A query's blocks are merged one by one in ascending position, so its result depends on its own blocks only.
"""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_partial(scores: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unnormalised softmax over one block's keys.

    Args:
        scores: [..., rows, 128] fp32, scaled.
        visible: broadcastable to [..., rows]; keys at or past it are masked. At least 1.

    Returns:
        (weights [..., rows, 128], their maximum's exponent peak [..., rows], their sum mass [..., rows]).
    """
    key = torch.arange(scores.shape[-1], device=scores.device)
    scores = scores.masked_fill(key >= visible[..., None], -torch.inf)
    peak = scores.amax(-1)
    weights = torch.exp(scores - peak[..., None])
    return weights, peak, weights.sum(-1)


class Merge:
    """Running log-sum-exp merge of block partials.

    Attributes:
        out: [..., D] fp32 running weighted sum, peak and mass: [...] its exponent and weight.
    """

    def __init__(self, shape: torch.Size | tuple[int, ...], device: torch.device):
        self.out = torch.zeros(shape, dtype=torch.float32, device=device)
        self.peak = torch.full(shape[:-1], -torch.inf, device=device)
        self.mass = torch.zeros(shape[:-1], device=device)

    def add(self, rows: slice, out: Tensor, peak: Tensor, mass: Tensor) -> None:
        """Merge a partial into `rows` of the first dim. peak = −inf leaves a row as it is, once it has a block."""
        old_peak = self.peak[rows]
        new_peak = torch.maximum(old_peak, peak)
        keep, take = torch.exp(old_peak - new_peak), torch.exp(peak - new_peak)
        self.out[rows] = self.out[rows] * keep[..., None] + out * take[..., None]
        self.mass[rows] = self.mass[rows] * keep + mass * take
        self.peak[rows] = new_peak

    def result(self) -> Tensor:
        """[..., D]: the attention output."""
        return self.out / self.mass[..., None]
