"""NVFP4: E2M1 codes, two a byte, with an E4M3 scale per 16 values.

Format (facts of the M3.1 cache): low nibble = even dim; scales linear, no global scale. Quantiser: scale =
E4M3(amax / 6) clamped to [1/512, 448]; codes round half to even; never −0. Two ways to read:

- "exact": e2m1·scale;
- "e4m3": e2m1·scale, saturated to ±448 and rounded to E4M3 (then dotted with an E4M3 query).
"""

from __future__ import annotations

from torch import Tensor

from tamis.kernels import cpu_extension, registry
from tamis.kernels.nvfp4 import cpu
from tamis.kernels.nvfp4.cpu import GROUP, quantize, round_to_e4m3

__all__ = ["GROUP", "dequantize", "quantize", "round_to_e4m3"]


def dequantize(codes: Tensor, scales: Tensor, contract: str = "exact") -> Tensor:
    """See `cpu.dequantize`; served by the native kernel where the registry finds it."""
    if registry.select("nvfp4", codes.device.type, contract).name == "native":
        return cpu_extension.nvfp4_unpack(codes.contiguous(), scales.contiguous(), contract=contract)
    return cpu.dequantize(codes, scales, contract)
