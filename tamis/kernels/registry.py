"""Which implementation serves an op, and why: capabilities are declared, selection explains itself.

Each op has a slow `reference` beside it that serves no request, and one implementation in torch operations for any
device. On a CPU NVFP4 reading, fp32 products, the mixture and sparse attention, from index scores to outputs, have a
native one; on a GPU products with packed weights and sparse attention have one in Triton. A new kernel is one more
entry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tamis.kernels import cpu_extension, triton_device

_ANY = ("cpu", "cuda")
_FORMATS = ("plain", "mxfp8", "nvfp4")


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    Attributes:
        op: the folder under `kernels`.
        name: "torch", "native" or "triton".
        devices: torch device types it runs on.
        variants: which variants of the op (formats, contracts) it computes; None is all.
        missing: returns why it cannot run on this machine, or "" when it can.
        source: module that holds it.
    """

    op: str
    name: str
    devices: tuple[str, ...] = _ANY
    variants: tuple[str, ...] | None = None
    missing: Callable[[], str] = lambda: ""
    source: str = ""


def _native(op: str, variants: tuple[str, ...] | None, source: str) -> Implementation:
    return Implementation(op, "native", ("cpu",), variants, lambda: cpu_extension.load().reason, f"csrc/cpu/{source}")


def _triton(op: str, variants: tuple[str, ...]) -> Implementation:
    source = f"tamis/kernels/{op}/triton.py"
    return Implementation(op, "triton", ("cuda",), variants, triton_device.missing, source)


_NVFP4_LANES = ("nvfp4 exact", "nvfp4 e4m3")
_LANES = ("float32", "bfloat16", "fp8", *_NVFP4_LANES)

# Best first within an op.
IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _native("nvfp4", ("exact", "e4m3"), "nvfp4.cpp"),
    # fp32 throughout: what a CPU computes with by default.
    _native("linear", ("plain in torch.float32",), "product.h"),
    _native("moe", ("plain+plain in torch.float32",), "mixture.h"),
    # Vectors of `cpu_extension.fits`; other dims are torch's.
    _native("index_score", _LANES, "index_score.cpp"),
    _native("topk_blocks", None, "topk.cpp"),
    _native("sparse_attention", _LANES, "sparse_attention.cpp"),
    # bf16 activations. A plain weight of `linear` is torch's.
    _triton("linear", ("mxfp8", "nvfp4")),
    # Routed experts' format + shared expert's.
    _triton("moe", tuple(f"{routed}+{shared}" for routed in _FORMATS for shared in _FORMATS)),
    # bf16 queries of dim 128.
    _triton("index_score", ("bfloat16", "fp8", *_NVFP4_LANES)),
    _triton("topk_blocks", ("up to 32 of 16384",)),
    # Heads of 128 values, at most 16 to a KV head; other shapes are torch's.
    _triton("sparse_attention", ("bfloat16", "fp8", *_NVFP4_LANES)),
    *(
        Implementation(op, "torch", source=f"tamis/kernels/{op}/cpu.py")
        for op in (
            "nvfp4",
            "linear",
            "swiglu",
            "moe",
            "row_insert",
            "index_score",
            "topk_blocks",
            "sparse_attention",
            "dense_attention",
        )
    ),
)


def refusal(implementation: Implementation, device: str, variant: str | None) -> str:
    """Why an implementation does not serve this device and variant on this machine; "" when it does."""
    if device not in implementation.devices:
        return f"runs on {', '.join(implementation.devices)} only"
    if variant is not None and implementation.variants is not None and variant not in implementation.variants:
        return f"computes {', '.join(implementation.variants)} only"
    return implementation.missing()


@functools.cache
def select(op: str, device: str, variant: str | None = None) -> Implementation:
    """The first implementation of an op that serves a device and variant.

    Raises:
        LookupError: none does; lists why each was refused.
    """
    refused = []
    for implementation in IMPLEMENTATIONS:
        if implementation.op == op:
            reason = refusal(implementation, device, variant)
            if not reason:
                return implementation
            refused.append(f"{implementation.name}: {reason}")
    raise LookupError(f"no implementation of {op} for {device}, {variant}: {'; '.join(refused) or 'unknown op'}")


def explain(device: str, variants: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Who serves each op on a device, and why the others do not.

    Args:
        device: "cpu" or "cuda".
        variants: op → the variant that will be asked for, where it matters.

    Returns:
        One entry an op: {"op", "variant", "implementation", "source", "refused": {name: reason}}.
    """
    out = []
    for op in dict.fromkeys(i.op for i in IMPLEMENTATIONS):
        variant = (variants or {}).get(op)
        chosen = select(op, device, variant)
        others = [i for i in IMPLEMENTATIONS if i.op == op and i is not chosen]
        reasons = {i.name: refusal(i, device, variant) for i in others}
        out.append(
            {
                "op": op,
                "variant": variant,
                "implementation": chosen.name,
                "source": chosen.source,
                "refused": {name: reason for name, reason in reasons.items() if reason},
            }
        )
    return out
