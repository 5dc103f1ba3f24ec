"""`x @ weight.T` in C++, fp32: each sum in one order, so that a row's bits are its own (csrc/cpu/product.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import cpu_extension


def linear(x: Tensor, weight: Tensor, path: str = "auto") -> Tensor:
    """See `cpu.linear`.

    Args:
        x: [..., K] fp32 on the CPU.
        weight: [N, K] fp32, contiguous.
        path: "auto" takes the fastest that this CPU runs; "scalar" and "avx2" force one.

    Returns:
        [..., N] fp32. Reads N·K·4 bytes of weights once for every 256 rows; on torch's number of threads.

    Raises:
        RuntimeError: there is no extension.
        ValueError: other dtypes, shapes or layouts.
    """
    k = x.shape[-1]
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or x.is_cuda or weight.is_cuda:
        raise ValueError(f"x is {x.dtype} and weight {weight.dtype}, but both must be float32 on the CPU")
    if weight.dim() != 2 or weight.shape[1] != k or not weight.is_contiguous():
        raise ValueError(
            f"weight is {list(weight.shape)} with strides {weight.stride()}, but must be [N, {k}] and contiguous"
        )
    rows = x.detach().reshape(-1, k).contiguous()
    out = torch.empty(len(rows), weight.shape[0])
    cpu_extension.module().linear(rows.numpy(), weight.detach().numpy(), out.numpy(), torch.get_num_threads(), path)
    return out.view(*x.shape[:-1], weight.shape[0])
