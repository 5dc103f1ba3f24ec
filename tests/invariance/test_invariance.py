"""Promise 4 on the CPU: a request's tokens, and the bits of their log probabilities, are the same whatever the load."""

from __future__ import annotations

import random

import msgspec
import pytest
import torch

from tests.invariance.engine import VOCAB, SmallEngine, greedy

FORMATS = [("bfloat16", "bfloat16"), ("nvfp4", "nvfp4")]


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def mixed_requests() -> list:
    """16 requests: one token to more than six blocks, so that selection leaves blocks out; some share prefixes."""
    shared = prompt(384, 99)
    lengths = [1, 2, 5, 17, 127, 128, 129, 255, 300, 385, 511, 600]
    requests = [greedy(f"r{i}", prompt(n, i), 6 + i % 7) for i, n in enumerate(lengths)]
    tails = [(256, 3), (300, 50), (384, 1), (384, 150)]  # prefixes that end at a block and inside one
    return requests + [greedy(f"s{i}", shared[:n] + prompt(t, 50 + i), 9) for i, (n, t) in enumerate(tails)]


@pytest.fixture(scope="module", params=FORMATS, ids=["-".join(f) for f in FORMATS])
def formats(request):
    return request.param


@pytest.fixture(scope="module")
def make(tmp_path_factory, formats):
    def make(**config) -> SmallEngine:
        return SmallEngine(
            tmp_path_factory.mktemp("model"), kv_cache_dtype=formats[0], index_dtype=formats[1], threads=2, **config
        )

    return make


@pytest.fixture(scope="module")
def alone(make):
    """Every request by itself, in one chunk, with nothing cached: what all else is compared with."""
    engine = make(max_num_batched_tokens=4096, enable_prefix_caching=False)
    results = {r.request_id: engine.run([r])[r.request_id] for r in mixed_requests()}
    engine.close()
    assert len({t for r in results.values() for t in r.token_ids}) > 20, "the model must not say one thing only"
    return results


def assert_same(results, alone):
    for request_id, result in results.items():
        assert result.token_ids == alone[request_id].token_ids, request_id
        assert result.logprobs == alone[request_id].logprobs, request_id


@pytest.mark.parametrize("chunk", [16, 100, 4096])
def test_in_a_batch_of_16_with_any_chunk_size(make, alone, chunk):
    engine = make(max_num_batched_tokens=chunk, max_num_seqs=16)
    results = engine.run(mixed_requests())
    engine.close()
    assert_same(results, alone)


def test_with_prefix_hits_inside_and_at_a_block(make, alone):
    engine = make()
    base = engine.run([greedy("base", prompt(384, 99), 40)])["base"]
    assert base.num_cached_tokens == 0
    results = engine.run(mixed_requests())
    again = engine.run(mixed_requests())
    engine.close()
    hits = {f"s{i}": results[f"s{i}"].num_cached_tokens for i in range(4)}
    assert hits == {"s0": 256, "s1": 256, "s2": 384, "s3": 384}
    assert sum(r.num_cached_tokens > 0 for r in again.values()) >= 10
    assert_same(results, alone)
    assert_same(again, alone)


def test_under_forced_preemption(make):
    requests = [greedy(f"p{i}", prompt(118 + i, i), 24) for i in range(9)]  # each grows into a second block
    roomy, tight = make(enable_prefix_caching=False), make(num_blocks_override=11, max_model_len=1024)
    alone = {r.request_id: roomy.run([r])[r.request_id] for r in requests}
    rounds = [tight.run(requests) for _ in range(2)]
    preemptions = tight.core.stats().preemptions
    roomy.close()
    tight.close()
    assert preemptions > 0
    for results in rounds:
        assert_same(results, alone)


def test_with_another_thread_count(make, alone):
    engine = make()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = engine.run(mixed_requests())
    finally:
        torch.set_num_threads(threads)
        engine.close()
    assert_same(results, alone)


def test_seeded_sampling_does_not_depend_on_neighbours(make):
    def sampled(request):
        seed = sum(request.request_id.encode())
        request.sampling = msgspec.structs.replace(request.sampling, temperature=0.9, top_p=0.95, top_k=40, seed=seed)
        return request

    engine = make()
    alone = {r.request_id: engine.run([sampled(r)])[r.request_id] for r in mixed_requests()}
    together = engine.run([sampled(r) for r in mixed_requests()])
    greedy_tokens = engine.run(mixed_requests())
    engine.close()
    assert_same(together, alone)
    assert any(together[i].token_ids != greedy_tokens[i].token_ids for i in together), "nothing was sampled"
