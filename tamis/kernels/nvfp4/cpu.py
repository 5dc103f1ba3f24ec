"""NVFP4 in torch operations (any device), exact to the bit."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 16
_E4M3_MAX = 448.0
_SCALE_MIN = 1.0 / 512.0


def round_to_e4m3(x: Tensor) -> Tensor:
    """x: float → fp32 values rounded to E4M3 (half to even), saturated to ±448."""
    return x.float().clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).float()


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise the last dim.

    Args:
        x: [..., D] float, D a multiple of 16; finite.

    Returns:
        codes [..., D / 2] uint8, low nibble = even dim; scales [..., D / 16] float8_e4m3fn.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1)
    scales = (amax / 6.0).clamp(_SCALE_MIN, _E4M3_MAX).to(torch.float8_e4m3fn)
    scaled = groups / scales.float()[..., None]
    magnitude = scaled.abs()
    # Midpoints between codes 0 .5 1 1.5 2 3 4 6; at a midpoint the even code wins, hence < and <= in turn.
    code = (magnitude > 0.25).to(torch.uint8)
    for midpoint, even_above in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        code += (magnitude >= midpoint) if even_above else (magnitude > midpoint)
    code |= ((scaled < 0) & (code > 0)).to(torch.uint8) << 3
    code = code.flatten(-2)
    return code[..., ::2] | code[..., 1::2] << 4, scales


def dequantize(codes: Tensor, scales: Tensor, contract: str = "exact") -> Tensor:
    """Read codes back.

    Args:
        codes: [..., D / 2] uint8; scales: [..., D / 16] float8_e4m3fn.
        contract: "exact" or "e4m3".

    Returns:
        [..., D] fp32. Reads D/2 + D/16 bytes a vector.

    Raises:
        ValueError: another contract.
    """
    if contract not in ("exact", "e4m3"):
        raise ValueError(f"contract is {contract!r}, but must be 'exact' or 'e4m3'")
    table = torch.tensor(
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0], device=codes.device
    )
    nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    values = table[nibbles.int()].unflatten(-1, (-1, GROUP)) * scales.float()[..., None]
    return values.flatten(-2) if contract == "exact" else round_to_e4m3(values.flatten(-2))
