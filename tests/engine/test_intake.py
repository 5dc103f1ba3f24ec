from __future__ import annotations

import re

import pytest

from tamis.config import BLOCK_TOKENS, EngineConfig
from tamis.engine.intake import Intake
from tamis.engine.messages import EngineRequest
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError, InvalidRequestError, UnsupportedError
from tests.engine.fake_runner import VOCAB_SIZE, engine_info


def intake(policy: str = "fcfs", seed: int = 0, **info: int) -> Intake:
    config = EngineConfig(scheduling_policy=policy, seed=seed)  # type: ignore[arg-type]
    return Intake(config, engine_info(**info))


def request(num_tokens: int = 4, max_tokens: int | None = 4, **kwargs: object) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=kwargs.pop("seed", None))  # type: ignore[arg-type]
    return EngineRequest(request_id="r", prompt_token_ids=[1] * num_tokens, sampling=sampling, **kwargs)  # type: ignore[arg-type]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least 1 token"):
        intake().accept(request(0), 0.0)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**40])
def test_a_token_outside_the_vocabulary_is_refused(token_id: int) -> None:
    bad = request()
    bad.prompt_token_ids = [1, token_id, 2]
    with pytest.raises(InvalidRequestError, match=rf"Token id {token_id} .*0 to {VOCAB_SIZE - 1}"):
        intake().accept(bad, 0.0)


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "says"),
    [
        pytest.param(300, 1, "300 tokens.*context of 300 tokens.*at most 299", id="prompt fills the context"),
        pytest.param(5000, None, "5000 tokens.*context of 300", id="prompt over the context, max_tokens open"),
        pytest.param(299, 2, "299 tokens and max_tokens is 2.*context of 300.*at most 1", id="output over the context"),
    ],
)
def test_what_cannot_fit_the_context_is_refused(num_tokens: int, max_tokens: int | None, says: str) -> None:
    with pytest.raises(ContextLengthError) as caught:
        intake(max_model_len=300).accept(request(num_tokens, max_tokens), 0.0)
    assert re.search(says, caught.value.sentence())


def test_what_cannot_fit_the_pool_is_refused() -> None:
    with pytest.raises(ContextLengthError, match=r"cache of 256 tokens \(2 blocks\)"):
        intake(num_blocks=2).accept(request(200, 57), 0.0)


@pytest.mark.parametrize(("max_model_len", "limit"), [(300, 300), (4096, 4 * BLOCK_TOKENS)])
def test_open_max_tokens_means_up_to_the_limit(max_model_len: int, limit: int) -> None:
    accepted = intake(num_blocks=4, max_model_len=max_model_len).accept(request(10, None), 0.0)
    assert accepted.max_tokens == limit - 10


def test_a_priority_is_refused_where_it_would_be_ignored() -> None:
    with pytest.raises(UnsupportedError, match="priority is 3"):
        intake("fcfs").accept(request(priority=3), 0.0)
    assert intake("priority").accept(request(priority=3), 0.0).rank == (3, 0)


def test_seeds_are_drawn_by_order_of_arrival() -> None:
    one, two, other = intake(seed=1), intake(seed=1), intake(seed=2)
    seeds = [one.accept(request(), 0.0).sampling.seed for _ in range(3)]
    two.accept(request(seed=5), 0.0)
    assert [two.accept(request(), 0.0).sampling.seed for _ in range(2)] == seeds[1:]
    assert other.accept(request(), 0.0).sampling.seed not in seeds
    assert len(set(seeds)) == 3 and all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


def test_a_seed_that_was_given_is_kept() -> None:
    assert intake().accept(request(seed=-5), 0.0).sampling.seed == -5
