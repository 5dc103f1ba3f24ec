"""NVFP4 value by value, in Python floats."""

from __future__ import annotations

import math

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3_value(byte: int) -> float:
    """The value of a non-negative, finite E4M3 byte."""
    exponent, mantissa = byte >> 3, byte & 7
    return mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def nearest_e4m3(value: float) -> int:
    """Byte of the nearest E4M3 magnitude (value ≥ 0), ties to even, saturating at 448 (byte 126)."""
    return min(range(127), key=lambda b: (abs(e4m3_value(b) - value), b & 1))


def quantize(values: list[float]) -> tuple[list[int], list[int]]:
    """128 (or any multiple of 16) values → (packed bytes, scale bytes)."""
    packed, scales, codes = [], [], []
    for start in range(0, len(values), 16):
        group = values[start : start + 16]
        scale_byte = max(nearest_e4m3(max(abs(v) for v in group) / 6), 1)
        scales.append(scale_byte)
        scale = e4m3_value(scale_byte)
        for v in group:
            target = abs(v) / scale
            code = min(range(8), key=lambda c: (abs(MAGNITUDES[c] - target), c & 1))
            codes.append(code | (8 if v < 0 and code else 0))
    for low, high in zip(codes[::2], codes[1::2], strict=True):
        packed.append(low | high << 4)
    return packed, scales


def dequantize(packed: list[int], scales: list[int], contract: str) -> list[float]:
    """Inverse of `quantize` under a contract."""
    out = []
    for i, byte in enumerate(packed):
        for code in (byte & 15, byte >> 4):
            value = MAGNITUDES[code & 7] * e4m3_value(scales[2 * i // 16])
            if contract == "e4m3":
                value = e4m3_value(nearest_e4m3(value))
            out.append(math.copysign(value, -1.0 if code & 8 else 1.0))
    return out
