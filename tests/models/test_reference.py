"""What the oracle lacks (init blocks, requests of several lengths in one step) against the slow references."""

from __future__ import annotations

import pytest
import torch

from tamis.attention.msa import SelectionRule, StepAttention
from tamis.attention.plan import Segment, StepTables
from tamis.kernels.dense_attention import reference as dense
from tamis.kernels.index_score import reference as score
from tamis.kernels.row_insert import reference as insert
from tamis.kernels.sparse_attention import reference as sparse
from tamis.kernels.topk_blocks import reference as topk
from tamis.models.config import parse_config
from tamis.runner.weights import build_model, load_dummy
from tests.invariance.engine import CONFIG
from tests.models.oracle import make_pool


class ReferenceAttention:
    """`attend` from the reference of every kernel."""

    def __init__(self, pool, tables, rule, scale):
        self.pool, self.tables, self.rule, self.scale = pool, tables, rule, scale
        self.selections = {}

    def attend(self, layer, q, k, v, index_q, index_k):
        k_lane, v_lane = self.pool.kv_lanes(layer)
        insert.insert(k_lane, k, self.tables.slots)
        insert.insert(v_lane, v, self.tables.slots)
        if index_q is not None:
            insert.insert(self.pool.index_lane(layer), index_k[:, None], self.tables.slots)
        parts, chosen = [], []
        for row, s in enumerate(self.tables.segments):
            at = slice(s.start, s.start + s.length)
            positions, table = self.tables.positions[at], self.tables.block_tables[row]
            if index_q is None:
                parts.append(dense.dense_attention(q[at], k_lane, v_lane, table, positions, self.scale))
                continue
            scores = score.block_scores(index_q[at], self.pool.index_lane(layer), table, positions)
            rule = self.rule
            chosen.append(
                topk.select_blocks(
                    scores, positions, k=rule.topk_blocks, init=rule.init_blocks, local=rule.local_blocks
                )
            )
            tables = table.expand(s.length, -1)
            parts.append(sparse.sparse_attention(q[at], k_lane, v_lane, chosen[-1], tables, positions, self.scale))
        if chosen:
            self.selections[layer] = torch.cat(chosen)
        return torch.cat(parts).to(q.dtype)


def step_tables(contexts: list[int]) -> StepTables:
    """Whole prompts of different lengths in one step, in shuffled blocks."""
    counts = [-(-n // 128) for n in contexts]
    blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)) + 1
    tables = torch.zeros(len(contexts), max(counts), dtype=torch.int64)
    segments, positions, slots, start = [], [], [], 0
    for row, (n, count) in enumerate(zip(contexts, counts, strict=True)):
        mine, blocks = blocks[:count], blocks[count:]
        tables[row, :count] = mine
        position = torch.arange(n)
        positions.append(position)
        slots.append(mine[position // 128] * 128 + position % 128)
        segments.append(Segment(start, n, n))
        start += n
    return StepTables(
        segments=segments,
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        block_tables=tables,
        request_of_token=torch.arange(len(contexts)).repeat_interleave(torch.tensor(contexts)),
    )


@pytest.mark.parametrize(
    "init, local, k, kv_format",
    [(1, 1, 3, "float32"), (2, 1, 3, "float32"), (1, 2, 3, "float32"), (0, 0, 2, "float32"), (1, 1, 2, "nvfp4")],
)
def test_step_attention_equals_the_references(init, local, k, kv_format):
    rules = {"sparse_init_block": init, "sparse_local_block": local, "sparse_topk_blocks": k}
    config = parse_config(CONFIG, {"sparse_attention_config": rules})
    model = build_model(config, torch.float32, torch.device("cpu"))
    load_dummy(model, seed=5)
    contexts = [3, 390, 129]
    tables = step_tables(contexts)
    token_ids = torch.randint(0, config.vocab_size, (sum(contexts),), generator=torch.Generator().manual_seed(1))
    rule = SelectionRule(config.topk_blocks, config.init_blocks, config.local_blocks)
    runs = []
    for make in (StepAttention, ReferenceAttention):
        pool = make_pool(config, sum(-(-n // 128) for n in contexts) + 1, kv_format, "float32")
        attention = make(pool, tables, rule, config.head_dim**-0.5)
        attention.keep_selections = True
        with torch.inference_mode():
            hidden = model(token_ids, tables.positions, attention, max(contexts))
        runs.append((hidden, attention.selections))
    (got, got_selections), (want, want_selections) = runs
    for layer, selection in want_selections.items():
        assert torch.equal(got_selections[layer], selection)
    tolerance = 1e-4 if kv_format == "float32" else 0.05  # a code that rounds the other way moves a value by a step
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance)
    last_of_390 = got_selections[1][3 + 389]
    assert all(b in last_of_390[0].tolist() for b in range(init)), "the first blocks must be forced in"
