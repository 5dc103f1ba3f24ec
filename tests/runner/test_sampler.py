"""The sampler: each knob against its definition, and draws that depend on (seed, position) only."""

from __future__ import annotations

import math

import pytest
import torch

from tamis.engine.sampling_params import SamplingParams
from tamis.runner.inputs import RequestState
from tamis.runner.sampler import sample

VOCAB = 50


def state(prompt=(1, 2), output=(), **sampling) -> RequestState:
    params = SamplingParams(**{"max_tokens": 100, "seed": 7, **sampling})
    tokens = [*prompt, *output]
    return RequestState(tokens, len(prompt), len(tokens), [], params, [])


def logits(seed: int = 0, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def draws(base: torch.Tensor, count: int = 4000, **sampling) -> torch.Tensor:
    """Frequencies over seeds."""
    states = [state(seed=s, **sampling) for s in range(count)]
    tokens = [t.token_id for t in sample(base.repeat(count, 1), states)]
    return torch.bincount(torch.tensor(tokens), minlength=VOCAB) / count


def test_temperature_zero_takes_the_largest_logit():
    x = logits(rows=5)
    want = x.argmax(-1).tolist()
    assert [t.token_id for t in sample(x, [state(temperature=0.0)] * 5)] == want


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_tempered_distribution(temperature):
    base = logits(1)
    want = torch.softmax(base[0] / temperature, dim=-1)
    got = draws(base, temperature=temperature)
    assert (got - want).abs().max() < 4 * math.sqrt(0.25 / 4000)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-38, 1e-6])
@pytest.mark.parametrize("repetition_penalty", [0.01, 1.0, 10.0])
def test_a_temperature_next_to_zero_takes_the_largest_logit(temperature, repetition_penalty):
    x = logits(1, rows=2) * 100
    extreme = {"repetition_penalty": repetition_penalty, "output": (3, 4, 5)}
    greedy = [t.token_id for t in sample(x.clone(), [state(temperature=0.0, **extreme)] * 2)]
    assert [t.token_id for t in sample(x, [state(temperature=temperature, **extreme)] * 2)] == greedy


def test_a_request_that_bars_every_token_still_gets_one():
    params = SamplingParams(temperature=1.0, max_tokens=9, min_tokens=5, seed=1, repetition_penalty=10.0)
    barred = RequestState([1, 3], 1, 2, [], params, list(range(VOCAB)))
    beside = state(seed=42)
    tokens = [t.token_id for t in sample(logits(5, rows=2), [barred, beside])]
    assert 0 <= tokens[0] < VOCAB
    assert tokens[1] == sample(logits(5, rows=2)[1:], [beside])[0].token_id


def test_top_k_keeps_the_k_most_likely():
    base = logits(2)
    assert set(draws(base, top_k=3).nonzero()[:, 0].tolist()) == set(base[0].topk(3).indices.tolist())


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    base = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05] + [1e-9] * (VOCAB - 4)]))
    assert set(draws(base, top_p=0.79).nonzero()[:, 0].tolist()) == {0, 1}
    assert set(draws(base, top_p=0.81).nonzero()[:, 0].tolist()) == {0, 1, 2}
    assert set(draws(base, top_p=1e-6).nonzero()[:, 0].tolist()) == {0}


def test_min_p_cuts_relative_to_the_most_likely():
    base = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05] + [1e-9] * (VOCAB - 4)]))
    assert set(draws(base, min_p=0.5).nonzero()[:, 0].tolist()) == {0, 1}


def test_draws_depend_on_seed_and_position_only():
    base = logits(3)
    noise = [state(seed=s, temperature=1.3) for s in range(5)]
    alone = sample(base.clone(), [state(seed=42)])[0].token_id
    batch = sample(torch.cat([logits(9, 5), base]), [*noise, state(seed=42)])[-1].token_id
    assert alone == batch
    by_position = {sample(base.clone(), [state(seed=42, prompt=range(n))])[0].token_id for n in range(1, 40)}
    assert len(by_position) > 3


def test_negative_and_large_seeds_are_accepted():
    tokens = [sample(logits(3), [state(seed=s)])[0].token_id for s in (-1, -(2**63), 2**63 - 1)]
    assert all(0 <= t < VOCAB for t in tokens)


def test_logit_bias_forces_and_bars():
    x = logits(4)
    best = int(x.argmax())
    assert sample(x.clone(), [state(temperature=0.0, logit_bias={9: 100.0})])[0].token_id == 9
    assert sample(x.clone(), [state(temperature=0.0, logit_bias={best: -100.0})])[0].token_id != best


def test_stop_tokens_are_barred_before_min_tokens():
    x = logits(5)
    best = int(x.argmax())
    barred = RequestState([1, 3], 1, 2, [], SamplingParams(temperature=0.0, max_tokens=9, min_tokens=2), [best])
    assert sample(x.clone(), [barred])[0].token_id != best
    free = RequestState([1, 3, 3], 1, 3, [], barred.sampling, [best])
    assert sample(x.clone(), [free])[0].token_id == best


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_barred_tokens_are_out_of_reach_of_penalties_and_bias(temperature):
    x = torch.zeros(1, VOCAB)
    x[0, 1] = 9.0
    # A hundredth of a penalty multiplies the logit of a token in the prompt by a hundred; the bias comes on top.
    boosted = {"prompt": [1], "repetition_penalty": 0.01, "logit_bias": {1: 100.0}, "temperature": temperature}
    assert sample(x.clone(), [state(**boosted)])[0].token_id == 1
    assert sample(x.clone(), [state(barred_token_ids=[1], **boosted)])[0].token_id != 1


def test_barred_tokens_stay_barred_when_all_others_are_put_off():
    params = SamplingParams(temperature=1.0, max_tokens=9, min_tokens=5, seed=1, barred_token_ids=[0])
    everything_stops = RequestState([1, 3], 1, 2, [], params, list(range(1, VOCAB)))
    assert sample(logits(5), [everything_stops])[0].token_id != 0


def test_frequency_and_presence_penalties_count_output_only():
    x = torch.zeros(1, VOCAB)
    x[0, 5], x[0, 6], x[0, 1] = 3.0, 2.9, 2.5
    penalised = state(prompt=[1, 1, 1], output=[5, 5], temperature=0.0, frequency_penalty=0.5, logprobs=0)
    assert sample(x.clone(), [penalised])[0].token_id == 6
    present = state(prompt=[1], output=[5, 6], temperature=0.0, presence_penalty=1.0)
    assert sample(x.clone(), [present])[0].token_id == 1


def test_repetition_penalty_counts_the_prompt_and_shrinks_either_sign():
    x = torch.full((1, VOCAB), -9.0)
    x[0, 1], x[0, 2] = 3.0, 2.0
    assert sample(x.clone(), [state(prompt=[1], temperature=0.0, repetition_penalty=2.0)])[0].token_id == 2
    x = torch.full((1, VOCAB), -9.0)
    x[0, 1], x[0, 2] = -1.0, -1.5
    assert sample(x.clone(), [state(prompt=[1], temperature=0.0, repetition_penalty=2.0)])[0].token_id == 2


def test_logprobs_are_those_of_the_unchanged_logits():
    x = logits(6)
    want = torch.log_softmax(x[0].double(), dim=-1)
    token = sample(x.clone(), [state(temperature=0.0, logit_bias={9: 100.0}, logprobs=4)])[0]
    assert token.token_id == 9
    assert token.logprobs.logprob == pytest.approx(float(want[9]), abs=1e-5)
    values, ids = want.topk(4)
    assert token.logprobs.top_token_ids == ids.tolist()
    assert token.logprobs.top_logprobs == pytest.approx(values.tolist(), abs=1e-5)


def test_one_batch_mixes_everything():
    states = [
        state(temperature=0.0),
        state(seed=1, top_k=2),
        state(seed=2, min_p=0.1, logprobs=0),
        state(output=[4, 4], repetition_penalty=1.3, top_p=0.5),
    ]
    rows = logits(8, 4)
    together = [t.token_id for t in sample(rows.clone(), states)]
    assert together == [sample(rows[i : i + 1].clone(), [s])[0].token_id for i, s in enumerate(states)]
