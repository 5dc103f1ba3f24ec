"""Sparse attention in torch operations, two ways with the same bits.

Few pairs of query and block (decode): gather each pair's block and take one batched product over the pairs. Many
(prefill): KV-outer: sort the pairs by block, read each block once, and run all its queries as one product. Either way
a pair's partial has the same bits (rows are padded to `ROW_TILE`, see kernels/linear), and a query merges its partials
in ascending block order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tamis.kernels.block_partial import Merge, softmax_partial
from tamis.kernels.lane import Lane
from tamis.kernels.linear.cpu import ROW_TILE, linear

_GATHER_PAIRS = 256
_MAX_GATHER_TOKENS = 64
_TILE_VALUES = 1 << 24

# Which pairs, and their unnormalised output [P, group, D], exponent and weight [P, group].
_Partial = tuple[slice | Tensor, Tensor, Tensor, Tensor]


def sparse_attention(
    q: Tensor, k_lane: Lane, v_lane: Lane, selection: Tensor, block_tables: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """Attend to selected blocks.

    Args:
        q: [T, Hq, D] float.
        k_lane, v_lane: Hkv heads; group g of query heads reads head g.
        selection: [T, Hkv, S] int64 block indices of the query's own request, ascending, −1 padded at the end.
        block_tables: [T, ≥ max index + 1] int64: each token's request's block ids.
        positions: [T] int64; keys past the query's position are masked.
        scale: of the scores.

    Returns:
        [T, Hq, D] fp32. Reads S · 128 vectors of K and V a token and KV head (decode), or each block once (prefill).
    """
    num_tokens, num_heads, dim = q.shape
    tile = max(1, _TILE_VALUES // (num_heads * selection.shape[-1] * dim))
    return torch.cat(
        [
            _tile(
                k_lane.query(q[at : at + tile]),
                k_lane,
                v_lane,
                selection[at : at + tile],
                block_tables[at : at + tile],
                positions[at : at + tile],
                scale,
            )
            for at in range(0, num_tokens, tile)
        ]
    )


def _tile(
    q: Tensor, k_lane: Lane, v_lane: Lane, selection: Tensor, block_tables: Tensor, positions: Tensor, scale: float
) -> Tensor:
    num_tokens, _, dim = q.shape
    num_kv_heads = selection.shape[1]
    num_slots = int((selection >= 0).sum(-1).max())  # padding comes last: merging it would change nothing
    selection = selection[..., :num_slots]
    query = q.unflatten(1, (num_kv_heads, -1))
    group = query.shape[2]
    token, head, slot = (selection >= 0).nonzero(as_tuple=True)
    index = selection[token, head, slot]
    block = block_tables[token, index]
    visible = (positions[token] - index * 128 + 1).clamp(max=128)

    out = q.new_zeros(num_tokens, num_slots, num_kv_heads, group, dim)
    peak = q.new_full(out.shape[:-1], -torch.inf)
    mass = q.new_zeros(out.shape[:-1])
    partials = _gathered if num_tokens <= _MAX_GATHER_TOKENS else _kv_outer
    for pairs, part_out, part_peak, part_mass in partials(query, k_lane, v_lane, token, head, block, visible, scale):
        at = (token[pairs], slot[pairs], head[pairs])
        out[at], peak[at], mass[at] = part_out, part_peak, part_mass

    merge = Merge((num_tokens, num_kv_heads, group, dim), q.device)
    for s in range(num_slots):
        merge.add(slice(None), out[:, s], peak[:, s], mass[:, s])
    return merge.result().flatten(1, 2)


def _gathered(
    query: Tensor, k_lane: Lane, v_lane: Lane, token: Tensor, head: Tensor, block: Tensor, visible: Tensor, scale: float
) -> Iterator[_Partial]:
    """Partials of pairs in runs of `_GATHER_PAIRS`: one batched product over [pair, group rows, D]."""
    group = query.shape[2]
    padding = -group % ROW_TILE
    for start in range(0, len(token), _GATHER_PAIRS):
        pairs = slice(start, start + _GATHER_PAIRS)
        rows = torch.nn.functional.pad(query[token[pairs], head[pairs]], (0, 0, 0, padding))
        keys = k_lane.read(block[pairs], head[pairs])
        values = v_lane.read(block[pairs], head[pairs])
        # Slots past the last token may hold anything, NaN too, which a zero weight would not silence.
        partial = (visible[pairs] < 128).nonzero()[:, 0]
        past = torch.arange(128, device=query.device) >= visible[pairs][partial, None]
        values[partial] = values[partial].masked_fill(past[..., None], 0.0)
        weights, peak, mass = softmax_partial(torch.bmm(rows, keys.transpose(1, 2)) * scale, visible[pairs, None])
        yield pairs, torch.bmm(weights, values)[:, :group], peak[:, :group], mass[:, :group]


def _kv_outer(
    query: Tensor, k_lane: Lane, v_lane: Lane, token: Tensor, head: Tensor, block: Tensor, visible: Tensor, scale: float
) -> Iterator[_Partial]:
    """Partials block by block: each (block, head) is read once for all the queries that selected it."""
    group, dim = query.shape[2:]
    num_kv_heads = query.shape[1]
    order = torch.argsort(block * num_kv_heads + head, stable=True)
    keys_of_pair = (block * num_kv_heads + head)[order]
    _, counts = torch.unique_consecutive(keys_of_pair, return_counts=True)
    start = 0
    for count in counts.tolist():
        pairs = order[start : start + count]
        start += count
        h = int(head[pairs[0]])
        keys = k_lane.read(block[pairs[0]], h)
        values = v_lane.read(block[pairs[0]], h)
        rows_visible = visible[pairs]
        values[int(rows_visible.max()) :] = 0.0
        rows = query[token[pairs], h].reshape(-1, dim)
        weights, peak, mass = softmax_partial(linear(rows, keys) * scale, rows_visible.repeat_interleave(group))
        out = linear(weights, values.T)
        yield pairs, out.view(count, group, dim), peak.view(count, group), mass.view(count, group)
