"""The product in fp64."""

from __future__ import annotations

from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x: [..., K], weight: [N, K] → [..., N] fp64."""
    return x.double() @ weight.double().T
