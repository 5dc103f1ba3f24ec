"""Insert all tokens of a step with one indexed write a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.lane import Lane, encode

_BYTE_VIEW = {torch.float8_e4m3fn: torch.uint8}


def insert(lane: Lane, x: Tensor, slots: Tensor) -> None:
    """Quantise and store.

    Args:
        lane: where to.
        x: [T, heads, dim] float.
        slots: [T] int64, block · 128 + offset; distinct, but for slots of a block that nobody reads.
    """
    block, offset = slots // 128, slots % 128
    heads = torch.arange(x.shape[1], device=x.device)
    index = (block[:, None], heads[None, :], offset[:, None])
    for target, values in zip((lane.codes, lane.scales), encode(x, lane.format), strict=True):
        if target is None or values is None:
            continue
        # Indexed writes do not exist for 8-bit floats; their bytes are the same.
        as_bytes = _BYTE_VIEW.get(values.dtype)
        if as_bytes is not None:
            target, values = target.view(as_bytes), values.view(as_bytes)
        target.index_put_(index, values)
