"""Where a layer keeps a matrix: a parameter when it is plain, the buffers of its packed form otherwise.

A packed matrix NAME of a module is registered as NAME_codes, NAME_scales and, for NVFP4, NAME_row_scales, so that
state dicts, `.to(device)` and byte counts see every tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight, PackedWeight, Weight

PLAIN = "plain"
_FIELDS = {"mxfp8": ("codes", "scales"), "nvfp4": ("codes", "scales", "row_scales")}
_CLASSES: dict[str, type[PackedWeight]] = {"mxfp8": MXFP8Weight, "nvfp4": NVFP4Weight}


def allocate(module: nn.Module, name: str, shape: tuple[int, ...], packing: str) -> None:
    """Register an uninitialised matrix (or stack) in a module.

    Args:
        name: `weight_of` finds it by this.
        shape: [..., N, K] of the values.
        packing: "plain" (default dtype), "mxfp8" (K a multiple of 32) or "nvfp4" (K a multiple of 16).
    """
    if packing == PLAIN:
        module.register_parameter(name, nn.Parameter(torch.empty(shape)))
        return
    *rows, columns = shape
    if packing == "mxfp8":
        tensors = [
            torch.empty(*rows, columns, dtype=torch.float8_e4m3fn),
            torch.empty(*rows, columns // 32, dtype=torch.uint8),
        ]
    else:
        tensors = [
            torch.empty(*rows, columns // 2, dtype=torch.uint8),
            torch.empty(*rows, columns // 16, dtype=torch.float8_e4m3fn),
            torch.empty(*rows, dtype=torch.float32),
        ]
    for field, tensor in zip(_FIELDS[packing], tensors, strict=True):
        module.register_buffer(f"{name}_{field}", tensor)


def weight_of(module: nn.Module, name: str, packing: str) -> Weight:
    """The matrix that `allocate` registered: the parameter, or a packed view of its buffers."""
    if packing == PLAIN:
        parameter: Tensor = getattr(module, name)
        return parameter
    return _CLASSES[packing](*(getattr(module, f"{name}_{field}") for field in _FIELDS[packing]))


def rebind(module: nn.Module, name: str, packing: str, weight: Weight) -> None:
    """Let a matrix stand for other memory of the same shape and packing, such as rows of a joined one."""
    if isinstance(weight, Tensor):
        getattr(module, name).data = weight
        return
    for field in _FIELDS[packing]:
        setattr(module, f"{name}_{field}", getattr(weight, field))


def rows(weight: Weight, start: int, stop: int) -> Weight:
    """Rows [start, stop) of one matrix, as views."""
    if isinstance(weight, Tensor):
        return weight[start:stop]
    return type(weight)(**{name: tensor[start:stop] for name, tensor in weight.tensors().items()})


def join(parts: Sequence[Weight]) -> Weight | None:
    """Matrices of one K and one packing joined along N; None when their packings differ."""
    first = parts[0]
    if isinstance(first, Tensor):
        plain = [p for p in parts if isinstance(p, Tensor)]
        return torch.cat(plain) if len(plain) == len(parts) else None
    alike = [p for p in parts if type(p) is type(first)]
    return type(first).cat([p for p in alike if isinstance(p, PackedWeight)]) if len(alike) == len(parts) else None


def held_weights(model: nn.Module) -> Iterator[tuple[nn.Module, str, Weight]]:
    """(module, name, matrix) of every matrix that a layer of the model holds, plain or packed."""
    for module in model.modules():
        packings = getattr(module, "packings", None)
        if isinstance(packings, dict):
            for name, packing in packings.items():
                yield module, name, weight_of(module, name, packing)
