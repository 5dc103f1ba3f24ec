"""Matrix product whose rows do not depend on each other's presence (batch invariance, promise 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import registry
from tamis.kernels.linear import cpu
from tamis.kernels.linear.cpu import ROW_TILE, row_tile
from tamis.kernels.linear.invariance import broken_shapes
from tamis.kernels.packed_weight import Weight

__all__ = ["ROW_TILE", "broken_shapes", "linear", "row_tile"]


def linear(x: Tensor, weight: Weight) -> Tensor:
    """See `cpu.linear`; a packed weight on a GPU is served by the Triton kernel where the registry finds it."""
    if not isinstance(weight, Tensor) and not (x.requires_grad and torch.is_grad_enabled()):
        variant = weight.format if x.dtype == torch.bfloat16 else f"{weight.format} in {x.dtype}"
        if registry.select("linear", x.device.type, variant).name == "triton":
            from tamis.kernels.linear import triton

            return triton.linear(x, weight)
    return cpu.linear(x, weight)
