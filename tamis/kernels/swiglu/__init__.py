"""SwiGLU-OAI: `g·σ(α·g)·(u + 1)` with g = min(gate, limit), u = clamp(up, ±limit); gate and up are halves, not interleaved."""

from tamis.kernels.swiglu.cpu import swiglu_oai

__all__ = ["swiglu_oai"]
