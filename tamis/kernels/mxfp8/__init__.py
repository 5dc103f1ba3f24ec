"""MXFP8: E4M3 codes with a power-of-two scale (E8M0) per 32 values.

Format (facts of the M3-MXFP8 checkpoint, and the OCP MX specification): value = e4m3 · 2^(scale − 127). Quantiser: the
scale's exponent is that of the group's largest magnitude less 8 (E4M3's own largest exponent); codes round half to
even and saturate at ±448.
"""

from tamis.kernels.mxfp8.cpu import GROUP, dequantize, quantize

__all__ = ["GROUP", "dequantize", "quantize"]
