"""RMSNorm that multiplies by (1 + w), in fp32."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """`x / rms(x) * (1 + weight)` over the last dim, computed in fp32 and returned in x's dtype.

    Source: every text norm of M3 (layer, per-head q/k, index and final norms).
    """

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., dim], any float dtype → same shape and dtype."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return ((wide * scale) * (1.0 + self.weight.float())).to(x.dtype)
