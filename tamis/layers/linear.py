"""Linear layers without bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tamis.kernels import linear as linear_kernel


class Linear(nn.Module):
    """`x @ weight.T`, with the same bits for a row whatever the other rows are (see `kernels/linear`).

    Attributes:
        weight: [out_features, in_features].
    """

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features] → [..., out_features] in x's dtype."""
        return linear_kernel.linear(x, self.weight)
