"""Matrix product whose rows do not depend on each other's presence (batch invariance, promise 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import registry
from tamis.kernels.linear import cpu
from tamis.kernels.linear.cpu import ROW_TILE, row_tile
from tamis.kernels.linear.invariance import broken_shapes
from tamis.kernels.packed_weight import Weight

__all__ = ["ROW_TILE", "broken_shapes", "is_native", "linear", "row_tile"]


def linear(x: Tensor, weight: Weight) -> Tensor:
    """See `cpu.linear`; served by the native or the Triton kernel where the registry finds it."""
    if isinstance(weight, Tensor):
        if _is_native(x, weight):
            from tamis.kernels.linear import native

            return native.linear(x, weight)
    elif not (x.requires_grad and torch.is_grad_enabled()):
        variant = weight.format if x.dtype == torch.bfloat16 else f"{weight.format} in {x.dtype}"
        if registry.select("linear", x.device.type, variant).name == "triton":
            from tamis.kernels.linear import triton

            return triton.linear(x, weight)
    return cpu.linear(x, weight)


def is_native(dtype: torch.dtype) -> bool:
    """Whether plain weights of a dtype are multiplied natively on a CPU, where rows cannot depend on each other."""
    return registry.select("linear", "cpu", f"plain in {dtype}").name == "native"


def _is_native(x: Tensor, weight: Tensor) -> bool:
    if x.is_cuda or x.dtype != weight.dtype or not weight.is_contiguous():
        return False
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return False
    return is_native(x.dtype)
