"""Without native kernels the torch operations serve the engine, and as invariantly."""

from __future__ import annotations

import pytest

from tamis.kernels import registry
from tests.invariance.engine import SmallEngine, greedy
from tests.invariance.test_invariance import assert_same, prompt

GROUPS = {
    "selection": ("index_score", "topk_blocks"),
    "attention": ("sparse_attention",),
    "products": ("linear", "moe"),
    "all": ("nvfp4", "linear", "moe", "index_score", "topk_blocks", "sparse_attention"),
}


@pytest.fixture(params=GROUPS.values(), ids=GROUPS)
def without_native(request, monkeypatch):
    kept = tuple(i for i in registry.IMPLEMENTATIONS if i.op not in request.param or i.name != "native")
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", kept)
    registry.select.cache_clear()
    yield request.param
    registry.select.cache_clear()


@pytest.mark.parametrize("cache", ["bfloat16", "nvfp4"])
def test_tokens_do_not_depend_on_the_load(tmp_path, cache, without_native):
    assert {registry.select(op, "cpu").name for op in without_native} == {"torch"}
    requests = [greedy(f"r{i}", prompt(n, i), 6) for i, n in enumerate([5, 129, 385, 600, 700])]
    engine = SmallEngine(tmp_path, kv_cache_dtype=cache, index_dtype=cache, threads=2, enable_prefix_caching=False)
    alone = {r.request_id: engine.run([r])[r.request_id] for r in requests}

    together = engine.run(requests)

    engine.close()
    assert_same(together, alone)
