"""Without the native index scores and top-k, the torch path serves the engine, and as invariantly."""

from __future__ import annotations

import pytest

from tamis.kernels import registry
from tests.invariance.engine import SmallEngine, greedy
from tests.invariance.test_invariance import assert_same, prompt


@pytest.fixture
def without_native_selection(monkeypatch):
    ops = ("index_score", "topk_blocks")
    kept = tuple(i for i in registry.IMPLEMENTATIONS if i.op not in ops or i.name != "native")
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", kept)
    registry.select.cache_clear()
    yield
    registry.select.cache_clear()


@pytest.mark.parametrize("index_dtype", ["bfloat16", "nvfp4"])
def test_tokens_do_not_depend_on_the_load(tmp_path, index_dtype, without_native_selection):
    assert registry.select("index_score", "cpu", index_dtype).name == "torch"
    assert registry.select("topk_blocks", "cpu").name == "torch"
    requests = [greedy(f"r{i}", prompt(n, i), 6) for i, n in enumerate([5, 129, 385, 600, 700])]
    engine = SmallEngine(tmp_path, index_dtype=index_dtype, threads=2, enable_prefix_caching=False)
    alone = {r.request_id: engine.run([r])[r.request_id] for r in requests}

    together = engine.run(requests)

    engine.close()
    assert_same(together, alone)
