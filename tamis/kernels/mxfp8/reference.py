"""MXFP8 value by value, in Python floats."""

from __future__ import annotations

import math

from tamis.kernels.nvfp4.reference import e4m3_value, nearest_e4m3


def quantize(values: list[float]) -> tuple[list[int], list[int]]:
    """Any multiple of 32 values → (E4M3 bytes, E8M0 bytes)."""
    codes, scales = [], []
    for start in range(0, len(values), 32):
        group = values[start : start + 32]
        amax = max(abs(v) for v in group)
        exponent = math.frexp(amax)[1] - 1 - 8 if amax else -127
        scales.append(min(max(exponent + 127, 0), 254))
        for v in group:
            byte = nearest_e4m3(abs(v) / 2.0 ** (scales[-1] - 127))
            codes.append(byte | (128 if math.copysign(1.0, v) < 0 else 0))
    return codes, scales


def dequantize(codes: list[int], scales: list[int]) -> list[float]:
    """Inverse of `quantize`."""
    return [
        math.copysign(e4m3_value(code & 127) * 2.0 ** (scales[i // 32] - 127), -1.0 if code & 128 else 1.0)
        for i, code in enumerate(codes)
    ]
