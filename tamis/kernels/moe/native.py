"""The whole mixture in one C++ call, fp32 (csrc/cpu/mixture.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import cpu_extension
from tamis.kernels.packed_weight import Weight


def moe(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    gate_up: Weight,
    down: Weight,
    shared_gate_up: Weight,
    shared_down: Weight,
    *,
    scale: float,
    alpha: float,
    limit: float,
    path: str = "auto",
) -> Tensor:
    """See `cpu.moe`; all floats fp32 on the CPU, matrices contiguous.

    Raises:
        RuntimeError: there is no extension.
        ValueError: other dtypes, shapes or layouts.
        IndexError: an expert's id is none.
    """
    tokens, hidden = x.shape
    experts, inner, shared = gate_up.shape[0], down.shape[-1], shared_down.shape[-1]
    expected: dict[str, tuple[Weight, tuple[int, ...], torch.dtype]] = {
        "expert_ids": (expert_ids, (tokens, expert_ids.shape[-1]), torch.int64),
        "weights": (weights, tuple(expert_ids.shape), torch.float32),
        "gate_up": (gate_up, (experts, 2 * inner, hidden), torch.float32),
        "down": (down, (experts, hidden, inner), torch.float32),
        "shared_gate_up": (shared_gate_up, (2 * shared, hidden), torch.float32),
        "shared_down": (shared_down, (hidden, shared), torch.float32),
        "x": (x, (tokens, hidden), torch.float32),
    }
    arrays = {}
    for name, (tensor, shape, dtype) in expected.items():
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.is_cuda or tuple(tensor.shape) != shape:
            found = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else tensor.format
            raise ValueError(f"{name} is {found} {list(tensor.shape)}, but must be {dtype} {list(shape)} on the CPU")
        # Matrices are what they are in memory; a copy of one would cost more than the product.
        if not tensor.is_contiguous() and name not in ("x", "expert_ids", "weights"):
            raise ValueError(f"{name} has strides {tensor.stride()}, but must be contiguous")
        arrays[name] = tensor.detach().contiguous().numpy()
    out = torch.empty(tokens, hidden)
    order = ("x", "expert_ids", "weights", "gate_up", "down", "shared_gate_up", "shared_down")
    cpu_extension.module().mixture(
        *(arrays[name] for name in order), out.numpy(), scale, alpha, limit, torch.get_num_threads(), path
    )
    return out
