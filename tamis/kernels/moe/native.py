"""The whole mixture in one C++ call, fp32 (csrc/cpu/mixture.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import cpu_extension


def moe(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared_gate_up: Tensor,
    shared_down: Tensor,
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
    expected = {
        "expert_ids": (expert_ids, (tokens, expert_ids.shape[-1]), torch.int64),
        "weights": (weights, tuple(expert_ids.shape), torch.float32),
        "gate_up": (gate_up, (experts, 2 * inner, hidden), torch.float32),
        "down": (down, (experts, hidden, inner), torch.float32),
        "shared_gate_up": (shared_gate_up, (2 * shared, hidden), torch.float32),
        "shared_down": (shared_down, (hidden, shared), torch.float32),
        "x": (x, (tokens, hidden), torch.float32),
    }
    for name, (tensor, shape, dtype) in expected.items():
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.is_cuda:
            raise ValueError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}, but must be {dtype} {list(shape)} "
                "on the CPU"
            )
    matrices = (gate_up, down, shared_gate_up, shared_down)
    if not all(matrix.is_contiguous() for matrix in matrices):
        raise ValueError("weight matrices must be contiguous")
    x, expert_ids, weights = x.contiguous(), expert_ids.contiguous(), weights.contiguous()
    out = torch.empty_like(x)
    cpu_extension.module().mixture(
        *(tensor.data_ptr() for tensor in (x, expert_ids, weights, *matrices, out)),
        [tokens, expert_ids.shape[1], experts, hidden, inner, shared],
        [scale, alpha, limit],
        torch.get_num_threads(),
        path,
    )
    return out
