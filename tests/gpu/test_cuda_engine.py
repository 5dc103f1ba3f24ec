"""The same engine on a GPU: greedy tokens and log probabilities of the CPU's, in every cache format."""

from __future__ import annotations

import pytest

from tests.invariance.engine import SmallEngine, greedy
from tests.invariance.test_invariance import prompt

FORMATS = [("float32", "float32"), ("bfloat16", "fp8"), ("nvfp4", "nvfp4")]


@pytest.mark.parametrize("kv, index", FORMATS, ids=["-".join(f) for f in FORMATS])
def test_cuda_gives_the_cpus_tokens(tmp_path, kv, index):
    requests = [greedy(f"r{i}", prompt(n, i), 12) for i, n in enumerate([1, 127, 129, 300, 700])]
    results = {}
    for device in ("cpu", "cuda"):
        engine = SmallEngine(tmp_path, device=device, dtype="float32", kv_cache_dtype=kv, index_dtype=index)
        assert engine.runner.device.type == device
        results[device] = engine.run(requests)
        engine.close()
    same = [results["cuda"][r].token_ids == results["cpu"][r].token_ids for r in results["cpu"]]
    # fp32 sums differ in order, and a rounded cache turns that into whole steps: first tokens must agree closely.
    assert all(same) if kv == "float32" else sum(same) >= 3
    for request_id, want in results["cpu"].items():
        tolerance = 1e-3 if kv == "float32" else 0.1
        assert results["cuda"][request_id].logprobs[0] == pytest.approx(want.logprobs[0], abs=tolerance), request_id


def test_bfloat16_is_the_default_there_and_runs(tmp_path):
    engine = SmallEngine(tmp_path, device="auto")
    assert engine.info.card["dtype"] == "bfloat16"
    result = engine.run([greedy("r", prompt(500, 1), 20)])["r"]
    engine.close()
    assert len(result.token_ids) == 20
    assert all(p <= 0.0 for p in result.logprobs)
