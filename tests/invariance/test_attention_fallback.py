"""Without the native sparse attention, the torch path serves the engine, and as invariantly."""

from __future__ import annotations

import pytest

from tamis.kernels import registry
from tests.invariance.engine import SmallEngine, greedy
from tests.invariance.test_invariance import assert_same, prompt


@pytest.fixture
def without_native_attention(monkeypatch):
    kept = tuple(i for i in registry.IMPLEMENTATIONS if i.op != "sparse_attention" or i.name != "native")
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", kept)
    registry.select.cache_clear()
    yield
    registry.select.cache_clear()


def test_tokens_do_not_depend_on_the_load(tmp_path, without_native_attention):
    assert registry.select("sparse_attention", "cpu", "bfloat16").name == "torch"
    requests = [greedy(f"r{i}", prompt(n, i), 6) for i, n in enumerate([5, 129, 385, 600, 700])]
    engine = SmallEngine(tmp_path, threads=2, enable_prefix_caching=False)
    alone = {r.request_id: engine.run([r])[r.request_id] for r in requests}

    together = engine.run(requests)

    engine.close()
    assert_same(together, alone)
