"""Block scores in chunks of 16 blocks: one batch-invariant product a chunk, then mask and max."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.lane import Lane
from tamis.kernels.linear.cpu import linear

_CHUNK_BLOCKS = 16
_TILE_ROWS = 2048


def block_scores(q: Tensor, lane: Lane, block_table: Tensor, positions: Tensor) -> Tensor:
    """Scores of one request's tokens against its own blocks.

    Args:
        q: [T, heads, dim] float index queries.
        lane: index lane, one head.
        block_table: [≥ n] int64 block ids of the request, n = max(positions) // 128 + 1.
        positions: [T] int64; a query sees keys at positions ≤ its own.

    Returns:
        [T, heads, n] fp32; −inf where a block is not visible at all. NaN only where a dot is NaN.
        Every product has the same shape but for its rows, so a score depends on its query and block alone.
    """
    num_tokens, heads, dim = q.shape
    num_blocks = int(positions.max()) // 128 + 1
    out = q.new_full((num_tokens, heads, num_blocks), -torch.inf, dtype=torch.float32)
    query = lane.query(q).reshape(-1, dim)
    rows_position = positions.repeat_interleave(heads)
    flat = out.view(-1, num_blocks)
    for first in range(0, num_blocks, _CHUNK_BLOCKS):
        blocks = block_table[first : min(first + _CHUNK_BLOCKS, num_blocks)]
        keys = lane.read(blocks, 0).reshape(-1, dim)
        missing = _CHUNK_BLOCKS * 128 - keys.shape[0]
        if missing:
            keys = torch.nn.functional.pad(keys, (0, 0, 0, missing))
        key_position = torch.arange(first * 128, (first + _CHUNK_BLOCKS) * 128, device=q.device)
        for start in range(0, query.shape[0], _TILE_ROWS):
            tile = slice(start, start + _TILE_ROWS)
            scores = linear(query[tile], keys)
            scores.masked_fill_(key_position > rows_position[tile, None], -torch.inf)
            best = scores.unflatten(-1, (_CHUNK_BLOCKS, 128)).amax(-1)
            flat[tile, first : first + len(blocks)] = best[:, : len(blocks)]
    return out
