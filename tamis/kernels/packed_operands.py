"""A weight's tensors as the Triton kernels read them."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight, Weight


def operands(weight: Weight) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, scales, row_scales) as `packed_tile.multiply` and `finish` read them; what a format lacks is its codes.

    Raises:
        ValueError: a tensor is not contiguous.
    """
    if isinstance(weight, NVFP4Weight):
        codes = weight.codes.view(torch.int32)
        tensors = codes, weight.scales.view(torch.uint8), weight.row_scales
    elif isinstance(weight, MXFP8Weight):
        codes = weight.codes.view(torch.int64)
        tensors = codes, weight.scales, codes
    else:
        assert isinstance(weight, Tensor)
        tensors = weight, weight, weight
    if not all(t.is_contiguous() for t in tensors):
        raise ValueError("a weight's tensors must be contiguous; call .contiguous() on them once, when it is loaded")
    return tensors


def padded(columns: int) -> int:
    """Columns of activations in phased order: rounded up to a multiple of 128."""
    return -(-columns // 128) * 128
