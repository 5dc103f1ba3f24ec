"""Selection by the C++ extension: one pass over a row with a threshold, exact in the total order of `cpu`."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import cpu_extension


def select_blocks(scores: Tensor, positions: Tensor, *, k: int, init: int, local: int) -> Tensor:
    """See `cpu.select_blocks`; the same ids. Reads a row's visible scores once; rows are spread over torch's threads.

    Raises:
        RuntimeError: there is no extension.
        ValueError: dtypes, shapes or devices other than those of `cpu.select_blocks`; a negative k, init or local.
    """
    native = cpu_extension.module()
    if scores.ndim != 3 or positions.shape != scores.shape[:1]:
        raise ValueError(
            f"scores are {tuple(scores.shape)} and positions {tuple(positions.shape)}, not [T, heads, n] and [T]"
        )
    if scores.dtype != torch.float32 or scores.device.type != "cpu" or k < 0:
        raise ValueError(f"scores are {scores.dtype} on {scores.device} and k is {k}, but must be float32, cpu and ≥ 0")
    num_tokens, heads, num_blocks = scores.shape
    out = torch.empty((num_tokens, heads, k), dtype=torch.int64)
    if out.numel():
        native.select_blocks(
            scores.detach().reshape(-1, num_blocks).contiguous().numpy(),
            positions.long().contiguous().numpy(),
            out.view(-1, k).numpy(),
            init,
            local,
            torch.get_num_threads(),
        )
    return out
