"""Softmax attention over the blocks that each query selected, whole sequences, with gradients.

On a CPU a token mask says what is seen; on a GPU FlexAttention skips the tiles that none of 128 queries selected, so
that neither scores nor masks of length² exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tamis.config import BLOCK_TOKENS


def selected_attention(q: Tensor, k: Tensor, v: Tensor, selected: Tensor, scale: float) -> Tensor:
    """Attend.

    Args:
        q: [rows, Hq, n, D]; k, v: [rows, Hkv, n, D], positions 0 to n − 1.
        selected: [rows, Hkv, n, blocks] bool, which blocks each query reads.
        scale: of the scores.

    Returns:
        [rows, Hq, n, D].
    """
    length = q.shape[2]
    if q.is_cuda and length % BLOCK_TOKENS == 0:
        return _by_tiles(q, k, v, selected, scale)
    mask = token_mask(selected, torch.arange(length, device=q.device), length)
    mask = mask.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def token_mask(selected: Tensor, queries: Tensor, length: int) -> Tensor:
    """Selected blocks [rows, heads, n, blocks] of `queries` [..., n] → visible tokens [rows, heads, n, length]."""
    tokens = selected.repeat_interleave(BLOCK_TOKENS, dim=-1)[..., :length]
    return tokens & (torch.arange(length, device=queries.device) <= queries[..., None])


def tiles_of(selected: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """The key blocks that some query of each run of 128 selected.

    Returns:
        counts [rows, Hq, tiles] int32 and block ids [rows, Hq, tiles, blocks] int32, selected ones first.
    """
    some = selected.unflatten(2, (-1, BLOCK_TOKENS)).any(3).repeat_interleave(group_size, dim=1)
    ids = some.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return some.sum(-1, dtype=torch.int32), ids.int()


def _by_tiles(q: Tensor, k: Tensor, v: Tensor, selected: Tensor, scale: float) -> Tensor:
    from torch.nn.attention.flex_attention import BlockMask

    group_size = q.shape[1] // k.shape[1]

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return selected[row, head // group_size, query, key // BLOCK_TOKENS] & (key <= query)

    counts, ids = tiles_of(selected, group_size)
    blocks = BlockMask.from_kv_blocks(counts, ids, BLOCK_SIZE=BLOCK_TOKENS, mask_mod=visible)
    # One dtype for all three: under autocast v is bf16 while the norms leave q and k as they were.
    q, k = q.to(v.dtype), k.to(v.dtype)
    return _compiled_flex()(q, k, v, block_mask=blocks, scale=scale, enable_gqa=True)


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
