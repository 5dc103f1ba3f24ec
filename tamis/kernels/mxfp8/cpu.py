"""MXFP8 in torch operations (any device), exact to the bit."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
_E4M3_MAX = 448.0
_E4M3_TOP_EXPONENT = 8
_BIAS = 127


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise the last dim.

    Args:
        x: [..., D] float, D a multiple of 32; finite.

    Returns:
        codes [..., D] float8_e4m3fn; scales [..., D / 32] uint8, E8M0 (254 at most; 255 is NaN).
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1)
    # frexp: amax = m · 2^e with m in [0.5, 1), so the exponent of the leading bit is e − 1. Zeros take the least scale.
    exponent = torch.frexp(amax).exponent - 1 - _E4M3_TOP_EXPONENT
    scales = torch.where(amax > 0, exponent + _BIAS, 0).clamp(0, 254)
    codes = groups / torch.ldexp(torch.ones_like(amax), scales - _BIAS)[..., None]
    return codes.clamp(-_E4M3_MAX, _E4M3_MAX).flatten(-2).to(torch.float8_e4m3fn), scales.to(torch.uint8)


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """Read codes back.

    Args:
        codes: [..., D] float8_e4m3fn; scales: [..., D / 32] uint8.

    Returns:
        [..., D] fp32, exact. Reads D + D/32 bytes a vector.
    """
    factor = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - _BIAS)
    return (codes.float().unflatten(-1, (-1, GROUP)) * factor[..., None]).flatten(-2)
