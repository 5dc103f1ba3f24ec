"""The product in fp64."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.packed_weight import Weight, dense


def linear(x: Tensor, weight: Weight) -> Tensor:
    """x: [..., K], weight: [N, K] → [..., N] fp64."""
    return x.double() @ dense(weight, torch.float64).T
