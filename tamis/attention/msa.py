"""Attention of one step: planned once, run per layer: insert → index → select → attend."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.attention import device_selection
from tamis.attention.dense import attend_dense
from tamis.attention.plan import StepTables
from tamis.cache.pool import RowPool
from tamis.kernels import index_score, row_insert, sparse_attention, topk_blocks


@dataclass(frozen=True)
class SelectionRule:
    """Which blocks a query reads.

    Attributes:
        topk_blocks: how many.
        init_blocks, local_blocks: the first and the last visible ones, which are forced in.
        random: the others are drawn instead of chosen by the indexer (`AttentionConfig.selection`).
    """

    topk_blocks: int
    init_blocks: int
    local_blocks: int
    random: bool = False


class StepAttention:
    """Serves `attend` (see models/m3.py) for the tokens of one step, over the pool's rows.

    With KV scales a lane holds k / k_scale and v / v_scale. Reading multiplies them back where it is exact and costs
    nothing: k_scale is a factor of the softmax scale, v_scale one of the output.

    Attributes:
        kv_scales: layer → (k_scale, v_scale); a layer that is not in it has none.
        selections: layer → [T, num_kv_heads, topk_blocks], kept when `keep_selections` is set (tests, tools).
    """

    def __init__(
        self,
        pool: RowPool,
        tables: StepTables,
        rule: SelectionRule,
        scale: float,
        *,
        kv_scales: Mapping[int, tuple[float, float]] | None = None,
        keep_selections: bool = False,
    ):
        self.pool = pool
        self.tables = tables
        self.rule = rule
        self.scale = scale
        self.kv_scales = kv_scales or {}
        self.selections: dict[int, Tensor] = {}
        self.keep_selections = keep_selections
        self.token_tables = tables.block_tables[tables.request_of_token]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, index_q: Tensor | None, index_k: Tensor | None
    ) -> Tensor:
        """See `models.m3.Attention`. Every row of the step is written before any query reads."""
        if layer in self.kv_scales:
            k_scale, v_scale = self.kv_scales[layer]
            out = self._attend(layer, q, k / k_scale, v / v_scale, index_q, index_k, self.scale * k_scale)
            return (out * v_scale).to(q.dtype)
        return self._attend(layer, q, k, v, index_q, index_k, self.scale).to(q.dtype)

    def _attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        index_q: Tensor | None,
        index_k: Tensor | None,
        scale: float,
    ) -> Tensor:
        k_lane, v_lane = self.pool.kv_lanes(layer)
        row_insert.insert(k_lane, k, self.tables.slots)
        row_insert.insert(v_lane, v, self.tables.slots)
        if index_q is None or index_k is None:
            return attend_dense(q, k_lane, v_lane, self.tables, scale)
        row_insert.insert(self.pool.index_lane(layer), index_k[:, None], self.tables.slots)
        selection = self._select(layer, index_q)
        if self.keep_selections:
            self.selections[layer] = selection
        return sparse_attention.sparse_attention(
            q,
            k_lane,
            v_lane,
            selection,
            self.token_tables,
            self.tables.positions,
            scale,
            neighbours=max(segment.length for segment in self.tables.segments),
        )

    @functools.cached_property
    def _request_starts(self) -> Tensor:
        return device_selection.request_starts(self.tables)

    def _select(self, layer: int, index_q: Tensor) -> Tensor:
        """[T, num_kv_heads, topk_blocks] for all requests."""
        rule, lane = self.rule, self.pool.index_lane(layer)
        if not rule.random and index_score.on_device(index_q, lane):
            return device_selection.select(
                index_q,
                lane,
                self.tables,
                self._request_starts,
                k=rule.topk_blocks,
                init=rule.init_blocks,
                local=rule.local_blocks,
            )
        parts = []
        for row, segment in enumerate(self.tables.segments):
            tokens = slice(segment.start, segment.start + segment.length)
            positions = self.tables.positions[tokens]
            num_blocks = -(-segment.context_tokens // 128)
            if num_blocks <= rule.topk_blocks:
                parts.append(self._all_visible(positions, index_q.shape[1]))
                continue
            if rule.random:
                heads = index_q.shape[1]
                scores = topk_blocks.random_scores(positions, heads=heads, num_blocks=num_blocks, seed=layer)
            else:
                scores = index_score.block_scores(index_q[tokens], lane, self.tables.block_tables[row], positions)
            parts.append(
                topk_blocks.select_blocks(
                    scores, positions, k=rule.topk_blocks, init=rule.init_blocks, local=rule.local_blocks
                )
            )
        return torch.cat(parts)

    def _all_visible(self, positions: Tensor, heads: int) -> Tensor:
        """The selection of queries that see no more blocks than they may read: all of them, whatever the scores."""
        block = torch.arange(self.rule.topk_blocks, device=positions.device)
        chosen = torch.where(block <= positions[:, None] // 128, block, -1)
        return chosen[:, None].expand(-1, heads, -1)
