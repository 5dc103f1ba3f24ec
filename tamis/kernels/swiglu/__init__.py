"""SwiGLU-OAI: `g·σ(α·g)·(u + 1)`, g = min(gate, limit), u = clamp(up, ±limit); gate and up are halves of a row."""

from tamis.kernels.swiglu.cpu import swiglu_oai

__all__ = ["swiglu_oai"]
