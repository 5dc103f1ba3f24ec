"""The optional C++ extension `tamis._cpu`: is it there, what can this CPU do, and the kernels it brings.

An install without a compiler has no extension; `load()` then says why and callers stay on torch. No kernel here has
semantics of its own: each names the torch function that it equals, and a test compares them bit by bit.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

GROUP = 16
MAX_DIM = 256
# What the callers below and in the ops' native.py ask of it: a build that lacks one is older than these sources.
_KERNELS = ("nvfp4_unpack", "linear", "mixture", "index_scores", "select_blocks", "sparse_attention")


@dataclass(frozen=True)
class Extension:
    """What `load` found.

    Attributes:
        module: the extension, or None.
        reason: why it is None, one sentence; "" when it is there.
        build: compiler, C++ standard and code paths usable on this CPU, e.g. `{"paths": {"avx2": True}}`.
        cpu: instruction set → usable on this machine (CPU has it and the operating system saves its registers).
    """

    module: ModuleType | None
    reason: str = ""
    build: dict[str, Any] = field(default_factory=dict)
    cpu: dict[str, bool] = field(default_factory=dict)


@functools.cache
def load() -> Extension:
    """Import the extension once; never raises."""
    try:
        module = importlib.import_module("tamis._cpu")
    except ModuleNotFoundError:
        return Extension(None, "Tamis was installed without its C++ extension.")
    except ImportError as error:  # built for another Python or C++ library
        return Extension(None, f"The C++ extension does not load: {error}.")
    if not all(hasattr(module, kernel) for kernel in _KERNELS):
        return Extension(None, "The C++ extension is of an older build: install Tamis again (make venv).")
    return Extension(module, "", module.build_info(), module.cpu_features())


def fits(dim: int) -> bool:
    """Whether the kernels over cached vectors compute vectors of this dim."""
    return dim % GROUP == 0 and 0 < dim <= MAX_DIM


def module() -> Any:
    """The extension.

    Raises:
        RuntimeError: there is none; says why.
    """
    extension = load()
    if extension.module is None:
        raise RuntimeError(extension.reason)
    return extension.module


def nvfp4_unpack(codes: Tensor, scales: Tensor, path: str = "auto", contract: str = "exact") -> Tensor:
    """NVFP4 → fp32 on the CPU, `kernels.nvfp4.dequantize` under either contract to the bit, −0 included.

    Args:
        codes: [..., D / 2] uint8, low nibble = even dim; contiguous, on the CPU.
        scales: [..., D / 16] float8_e4m3fn; contiguous. A NaN scale makes its 16 values NaN.
        path: "auto" takes the fastest that this CPU runs; "scalar" and "avx2" force one.
        contract: "exact" or "e4m3".

    Returns:
        [..., D] fp32. Reads D/2 + D/16 bytes and writes 4·D a vector, on the calling thread, without the GIL.

    Raises:
        RuntimeError: there is no extension.
        ValueError: dtypes, shapes or layouts other than the above, a path this CPU lacks, another contract.
    """
    native = module()
    if codes.dtype != torch.uint8 or scales.dtype != torch.float8_e4m3fn:
        raise ValueError(f"codes are {codes.dtype} and scales {scales.dtype}, but must be uint8 and float8_e4m3fn")
    expected = (*codes.shape[:-1], codes.shape[-1] * 2 // GROUP) if codes.ndim else None
    if expected is None or codes.shape[-1] % (GROUP // 2) or tuple(scales.shape) != expected:
        raise ValueError(
            f"codes are {tuple(codes.shape)} and scales {tuple(scales.shape)}, but must be [..., D/2] and [..., D/16]"
        )
    if codes.device.type != "cpu" or not (codes.is_contiguous() and scales.is_contiguous()):
        raise ValueError("codes and scales must be contiguous and on the CPU")
    out = torch.empty((*codes.shape[:-1], codes.shape[-1] * 2), dtype=torch.float32)
    # As flat numpy views: no copy, and numpy knows no float8.
    flat = codes.view(-1).numpy(), scales.view(torch.uint8).view(-1).numpy(), out.view(-1).numpy()
    native.nvfp4_unpack(*flat, path, contract)
    return out
