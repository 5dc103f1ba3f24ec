"""Dense attention block by block with a running log-sum-exp: nothing of the context's square is ever held.

The same partials and the same order of merging as sparse attention: a context that a query selects whole gives the
same bits there as here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.block_partial import Merge, softmax_partial
from tamis.kernels.lane import Lane
from tamis.kernels.linear import row_tile

_TILE_ROWS = 4096


def dense_attention(
    q: Tensor, k_lane: Lane, v_lane: Lane, block_table: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """Attend to all of one request's context.

    Args:
        q: [T, Hq, D] float, the request's tokens in ascending position.
        k_lane, v_lane: Hkv heads.
        block_table: [≥ n] int64 block ids, n = max(positions) // 128 + 1.
        positions: [T] int64, consecutive.
        scale: of the scores.

    Returns:
        [T, Hq, D] fp32. Reads the context's K and V once a tile of queries.
    """
    tile = max(1, _TILE_ROWS // q.shape[1])
    parts = [
        _tile(k_lane.query(q[at : at + tile]), k_lane, v_lane, block_table, positions[at : at + tile], scale)
        for at in range(0, q.shape[0], tile)
    ]
    return torch.cat(parts)


def _tile(q: Tensor, k_lane: Lane, v_lane: Lane, block_table: Tensor, positions: Tensor, scale: float) -> Tensor:
    num_tokens, _, dim = q.shape
    num_kv_heads = k_lane.codes.shape[1]
    # [Hkv, T, group, D]: rows of one product are a KV head's queries, token by token.
    query = q.unflatten(1, (num_kv_heads, -1)).transpose(0, 1).contiguous()
    group = query.shape[2]
    first_position, last_position = int(positions[0]), int(positions[-1])
    merge = Merge((num_tokens, num_kv_heads, group, dim), q.device)
    for b in range(last_position // 128 + 1):
        start = max(0, b * 128 - first_position)  # earlier tokens do not see this block
        visible = (positions[start:] - b * 128 + 1).clamp(max=128)
        rows = query[:, start:].flatten(1, 2)
        count = rows.shape[1]
        rows = torch.nn.functional.pad(rows, (0, 0, 0, -count % row_tile()))
        keys, values = k_lane.read(block_table[b]), v_lane.read(block_table[b])
        values[:, int(visible[-1]) :] = 0.0  # unwritten slots may hold NaN
        rows_visible = visible.repeat_interleave(group)
        scores = torch.bmm(rows, keys.transpose(1, 2))[:, :count] * scale
        weights, peak, mass = softmax_partial(scores, rows_visible)
        weights = torch.nn.functional.pad(weights, (0, 0, 0, -count % row_tile()))
        out = torch.bmm(weights, values)[:, :count]
        merge.add(
            slice(start, None),
            out.unflatten(1, (-1, group)).transpose(0, 1),
            peak.unflatten(1, (-1, group)).transpose(0, 1),
            mass.unflatten(1, (-1, group)).transpose(0, 1),
        )
    return merge.result().flatten(1, 2)
