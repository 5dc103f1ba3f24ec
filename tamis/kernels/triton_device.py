"""Whether Triton kernels can run here."""

from __future__ import annotations

import functools
import importlib.util

import torch


@functools.cache
def missing() -> str:
    """Why Triton kernels cannot run on this machine; "" when they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    return "" if major >= 9 else f"needs compute capability 9.0 (bf16 arithmetic), and this device has {major}.{minor}"


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter (TRITON_INTERPRET=1), which knows no PTX."""
    import triton

    return bool(triton.knobs.runtime.interpret)
