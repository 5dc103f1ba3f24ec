"""Attention of the training forward: rows of equal length, whole sequences, no cache.

Computes the model's own function (block selection included) and, beside it, the loss that the index branch learns
from. Source: facts of MSA training: KL(stop-grad group mean of main attention ‖ index softmax) on selected tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tamis.config import BLOCK_TOKENS
from tamis.models.config import M3Config
from tamis.train.quantization import fake_cached, fake_query
from tamis.train.selected_attention import selected_attention, token_mask

# Scores of a block's tokens are made for this many queries at a time: bounds memory, changes nothing.
_QUERY_CHUNK = 1024


def _block_maxima(index_q: Tensor, index_k: Tensor, query: Tensor) -> Tensor:
    """Largest visible score of each block.

    Args:
        index_q: [rows, heads, n, D]; index_k: [rows, 1, D, blocks · 128].
        query: [n] int64, positions.

    Returns:
        [rows, heads, n, blocks] fp32, −inf where a block holds no visible token.
    """
    scores = index_q @ index_k
    hidden = torch.arange(scores.shape[-1], device=query.device) > query[:, None]
    return scores.float().masked_fill(hidden, -torch.inf).unflatten(-1, (-1, BLOCK_TOKENS)).amax(-1)


@functools.cache
def _compiled_maxima() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return torch.compile(_block_maxima, dynamic=False)


class TrainAttention:
    """Serves `attend` (see `models.m3.Attention`) for `rows` sequences of `length` tokens, flattened.

    Attributes:
        index_losses: one scalar a sparse layer, in nats, filled by `attend` while gradients are on.
    """

    def __init__(
        self,
        config: M3Config,
        rows: int,
        length: int,
        *,
        queries: Tensor | None = None,
        index_sees_all: bool = False,
        nvfp4_cache: bool = False,
    ):
        """Set up for one forward.

        Args:
            config: of the model.
            rows, length: of the sequences.
            queries: [rows, n] int64, query positions of each row that the index loss looks at; None computes none.
            index_sees_all: compare over all visible tokens, also past the selected ones: how the branch warms up.
            nvfp4_cache: round keys, values and queries as an NVFP4 cache under the e4m3 contract does.
        """
        self.config = config
        self.group_size = config.num_heads // config.num_kv_heads
        self.rows = rows
        self.length = length
        self.queries = queries
        self.index_sees_all = index_sees_all
        self.nvfp4_cache = nvfp4_cache
        self.index_losses: list[Tensor] = []

    @property
    def is_selective(self) -> bool:
        """Whether some query sees more blocks than it may read."""
        return self.length > self.config.topk_blocks * BLOCK_TOKENS

    # Opaque to torch.compile: the layers around it then compile once for every row length.
    @torch.compiler.disable
    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, index_q: Tensor | None, index_k: Tensor | None
    ) -> Tensor:
        """See `models.m3.Attention`."""
        if self.nvfp4_cache:
            q, k, v = fake_query(q), fake_cached(k), fake_cached(v)
        q, k, v = (x.unflatten(0, (self.rows, self.length)).transpose(1, 2) for x in (q, k, v))
        scale = self.config.head_dim**-0.5
        selected = None
        if index_q is not None and index_k is not None:
            if self.nvfp4_cache:
                index_q, index_k = fake_query(index_q), fake_cached(index_k)
            index_q = index_q.unflatten(0, (self.rows, self.length)).transpose(1, 2)
            index_k = index_k.unflatten(0, (self.rows, self.length))
            selected = self._selected_blocks(index_q, index_k) if self.is_selective else None
            if self.queries is not None and torch.is_grad_enabled():
                seen = None if self.index_sees_all else selected
                self.index_losses.append(self._index_loss(self.queries, q, k, index_q, index_k, seen))
        if selected is None:
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        else:
            out = selected_attention(q, k, v, selected, scale)
        return out.transpose(1, 2).flatten(0, 1)

    @torch.no_grad()
    def _selected_blocks(self, index_q: Tensor, index_k: Tensor) -> Tensor:
        """[rows, heads, length, blocks] bool: the blocks each query reads."""
        config, device = self.config, index_q.device
        num_blocks = -(-self.length // BLOCK_TOKENS)
        block = torch.arange(num_blocks, device=device)
        index_k = torch.nn.functional.pad(index_k, (0, 0, 0, num_blocks * BLOCK_TOKENS - self.length))
        # One kernel reads the scores once; left to themselves the operations below would make five passes.
        block_maxima = _compiled_maxima() if index_q.is_cuda else _block_maxima
        parts = []
        for start in range(0, self.length, _QUERY_CHUNK):
            query = torch.arange(start, min(start + _QUERY_CHUNK, self.length), device=device)
            best = block_maxima(index_q[:, :, query], index_k[:, None].transpose(2, 3), query)
            own = query[:, None] // BLOCK_TOKENS
            forced = ((block < config.init_blocks) | (block > own - config.local_blocks)) & (block <= own)
            best = best.masked_fill(forced, torch.inf)
            chosen = best.topk(min(config.topk_blocks, num_blocks), dim=-1).indices
            parts.append(torch.zeros_like(best, dtype=torch.bool).scatter_(-1, chosen, True) & (block <= own))
        return torch.cat(parts, dim=2)

    def _index_loss(
        self, queries: Tensor, q: Tensor, k: Tensor, index_q: Tensor, index_k: Tensor, selected: Tensor | None
    ) -> Tensor:
        """Mean KL over the `queries` [rows, n] of each row and the KV heads."""
        config = self.config

        def rows_of(x: Tensor) -> Tensor:
            return x.gather(2, queries[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

        if selected is None:
            visible = (torch.arange(self.length, device=q.device) <= queries[:, :, None])[:, None]
        else:
            visible = token_mask(rows_of(selected), queries[:, None], self.length)
        with torch.no_grad():
            grouped = rows_of(q).unflatten(1, (config.num_kv_heads, self.group_size))
            main = (grouped @ k[:, :, None].transpose(3, 4)).float() / math.sqrt(config.head_dim)
            target = main.masked_fill(~visible[:, :, None], -torch.inf).softmax(-1).mean(2)
        scores = (rows_of(index_q) @ index_k[:, None].transpose(2, 3)).float()
        log_index = scores.masked_fill(~visible, -torch.inf).log_softmax(-1)
        # Outside the visible tokens the target is 0 and its logarithm −inf: both drop out.
        gap = torch.where(target > 0, target * (target.clamp_min(1e-20).log() - log_index.clamp_min(-1e4)), 0.0)
        return gap.sum(-1).mean()
