"""The runner: one request's broken numbers end that request only."""

from __future__ import annotations

import torch

from tests.invariance.engine import SmallEngine, greedy
from tests.invariance.test_invariance import prompt


def test_a_request_whose_logits_are_not_finite_ends_alone(tmp_path):
    engine = SmallEngine(tmp_path, kv_cache_dtype="float32")
    requests = [greedy("good", prompt(40, 1), 6), greedy("bad", prompt(50, 2), 6)]
    alone = engine.run(requests[:1])["good"]
    forward = engine.runner.forward

    def broken(inputs):
        logits = forward(inputs)
        if "bad" in inputs.sampled_ids and engine.runner.states["bad"].num_output_tokens == 3:
            logits[inputs.sampled_ids.index("bad"), 7] = torch.nan
        return logits

    engine.runner.forward = broken
    results = engine.run(requests)
    engine.runner.forward = forward
    again = engine.run([greedy("bad", prompt(50, 2), 6)])["bad"]
    engine.close()
    assert results["bad"].finish_reason == "error"
    assert results["bad"].token_ids == again.token_ids[:3]
    assert results["good"].token_ids == alone.token_ids
    assert again.finish_reason == "length"
