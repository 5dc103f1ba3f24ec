"""Block scores by the C++ extension: a block's keys are unpacked once for a tile of query rows, then dotted and maxed.

The function is `cpu.block_scores`; csrc/cpu/index_score.h says how and in which order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import cpu_extension
from tamis.kernels.lane import Lane


def block_scores(q: Tensor, lane: Lane, block_table: Tensor, positions: Tensor, path: str = "auto") -> Tensor:
    """See `cpu.block_scores`.

    Args:
        path: "auto" takes the fastest that this CPU runs; "scalar" and "avx2" force one.

    Returns:
        [T, heads, n] fp32. The same bits for a query whatever the other ones, torch's thread count or the number of
        blocks; paths may differ from each other by rounding. Reads a block's codes and scales once for 192 rows.

    Raises:
        RuntimeError: there is no extension.
        ValueError: shapes, strides, formats, block ids or a path that the kernel does not serve; says which.
    """
    native = cpu_extension.module()
    num_tokens, heads, dim = q.shape
    num_blocks = int(positions.max()) // 128 + 1
    if positions.shape != (num_tokens,):
        raise ValueError(f"positions are {tuple(positions.shape)}, but must be ({num_tokens},)")
    if block_table.ndim != 1 or block_table.shape[0] < num_blocks:
        raise ValueError(f"block_table is {tuple(block_table.shape)}, but the positions reach into block {num_blocks}")
    if lane.codes.device.type != "cpu" or q.device.type != "cpu":
        raise ValueError(f"q is on {q.device} and the lane on {lane.codes.device}, but both must be on the CPU")
    query = lane.query(q.detach()).reshape(-1, dim).contiguous()
    out = torch.empty((num_tokens, heads, num_blocks), dtype=torch.float32)
    # As numpy views of bytes: no copy, and numpy knows neither bfloat16 nor float8.
    native.index_scores(
        query.numpy(),
        lane.codes[:, 0].view(torch.uint8).numpy(),
        None if lane.scales is None else lane.scales[:, 0].view(torch.uint8).numpy(),
        block_table[:num_blocks].long().contiguous().numpy(),
        positions.long().contiguous().numpy(),
        out.view(-1, num_blocks).numpy(),
        lane.variant,
        torch.get_num_threads(),
        path,
    )
    return out
