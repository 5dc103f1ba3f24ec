"""Any mix of arrivals, aborts, priorities, salts, shared prefixes, tiny pools and failing steps.

The runner checks each plan (tests/engine/fake_runner.py); here it is checked that every request ends exactly once,
with the tokens it would have alone, and that the pool is whole after every move.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.config import BLOCK_TOKENS, EngineConfig, SchedulingPolicy
from tamis.engine.core import EngineCore
from tamis.engine.messages import EngineInfo, EngineRequest, RequestDelta
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError
from tests.engine.fake_runner import EOS, VOCAB_SIZE, FakeRunner, engine_info, tokens_alone

MAX_STEPS = 3000


def prompt(family: int, shared: int, tail: int, unique: int) -> list[int]:
    """`shared` tokens that all prompts of a family begin with, then `tail` tokens of its own."""
    common = [(family * 31 + i * 7) % (VOCAB_SIZE - 1) for i in range(shared)]
    return common + [(unique * 13 + i * 5 + 1) % (VOCAB_SIZE - 1) for i in range(tail)]


# Around block boundaries is where things go wrong.
lengths = st.one_of(
    st.integers(0, 2),
    st.integers(BLOCK_TOKENS - 3, BLOCK_TOKENS + 2),
    st.integers(2 * BLOCK_TOKENS - 2, 2 * BLOCK_TOKENS + 1),
    st.just(3 * BLOCK_TOKENS),
)


@st.composite
def requests(draw: st.DrawFn) -> EngineRequest:
    """A request without an id, small enough for any pool of 5 blocks or more."""
    max_tokens = draw(st.one_of(st.integers(1, 12), st.just(60)))
    return EngineRequest(
        request_id="",
        prompt_token_ids=prompt(
            draw(st.integers(0, 1)),
            draw(lengths),
            draw(st.one_of(st.integers(1, 3), st.just(127))),
            draw(st.integers(0, 2)),
        ),
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, 3).map(lambda n: min(n, max_tokens))),
            stop_token_ids=draw(st.sampled_from([[], [3, 4, 5]])),
            ignore_eos=draw(st.booleans()),
        ),
        eos_token_ids=[EOS, 40, 41],
        priority=draw(st.integers(-1, 1)),
        cache_salt=draw(st.sampled_from([None, None, "a", "b"])),
    )


@dataclass(frozen=True)
class Send:
    """A request like the n-th of the script's few templates: equal ones meet in the prefix cache."""

    template: int


@dataclass(frozen=True)
class Step:
    """Let the engine run."""

    times: int


@dataclass(frozen=True)
class Abort:
    """End the n-th request, counted from the newest."""

    nth: int


@dataclass(frozen=True)
class Again:
    """End the n-th request, counted from the newest, and send a new one under its id at once."""

    nth: int


@dataclass(frozen=True)
class Continue:
    """The next turn of a conversation: prompt and output of the n-th request, and a little more."""

    nth: int


nth = st.integers(0, 5)
moves = st.lists(
    st.one_of(
        st.integers(0, 3).map(Send),
        st.integers(0, 3).map(Send),
        st.integers(1, 3).map(Step),
        st.integers(4, 30).map(Step),
        nth.map(Abort),
        nth.map(Again),
        nth.map(Continue),
        st.sampled_from(["fail_submit", "fail_result"]),
    ),
    min_size=10,
    max_size=40,
)


@dataclass
class Life:
    """What was heard of one request."""

    request: EngineRequest
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class Drama:
    """An engine, and the lives of its requests."""

    def __init__(self, config: EngineConfig, info: EngineInfo, templates: list[EngineRequest]):
        self.info = info
        self.templates = templates
        self.by_priority = config.scheduling_policy == "priority"
        self.runner = FakeRunner(info)
        self.core = EngineCore(config, self.runner, info)
        self.lives: list[Life] = []
        self.live: dict[str, Life] = {}

    def add(self, request: EngineRequest, request_id: str) -> None:
        """Send a request."""
        request.request_id = request_id
        if not self.by_priority:
            request.priority = 0
        self.core.add_request(request)
        self.runner.salts[request_id] = request.cache_salt
        self.live[request_id] = Life(request)
        self.lives.append(self.live[request_id])

    def hear(self, deltas: list[RequestDelta]) -> None:
        """Take down news."""
        for delta in deltas:
            life = self.live[delta.request_id]
            life.token_ids += delta.token_ids
            if delta.finish_reason is not None:
                life.finish_reason = delta.finish_reason
                del self.live[delta.request_id]

    def move(self, move: object) -> None:
        """Do one thing."""
        match move:
            case Send(template):
                self.add(copy.copy(self.templates[template % len(self.templates)]), f"r{len(self.lives)}")
            case Step(times):
                for _ in range(times):
                    self.hear(self.core.step())
                    assert self.core.count_leaked_blocks() == 0
            case "fail_submit":
                self.runner.fail_submit = True
            case "fail_result":
                self.runner.fail_result = True
            case Abort(nth) if nth < len(self.lives):
                self.hear(self.core.abort([self.lives[-1 - nth].request.request_id]))
            case Again(nth) if nth < len(self.lives):
                old = self.lives[-1 - nth].request
                if old.request_id in self.live:
                    self.hear(self.core.abort([old.request_id]))
                    again = copy.copy(old)
                    again.prompt_token_ids = [2, *old.prompt_token_ids[1:]]
                    self.add(again, old.request_id)
            case Continue(nth) if nth < len(self.lives):
                life = self.lives[-1 - nth]
                turn = copy.copy(life.request)
                turn.prompt_token_ids = life.request.prompt_token_ids + life.token_ids + [1]
                if len(turn.prompt_token_ids) + 60 <= self.info.num_blocks * BLOCK_TOKENS:
                    self.add(turn, f"r{len(self.lives)}")
        assert self.core.count_leaked_blocks() == 0

    def finish(self) -> None:
        """Run until all is quiet."""
        for _ in range(MAX_STEPS):
            if not self.core.has_unfinished():
                return
            self.hear(self.core.step())
            assert self.core.count_leaked_blocks() == 0
        raise AssertionError(f"no end after {MAX_STEPS} steps: {self.live}")


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("tamis.engine.core")
    logger.disabled = True
    yield
    logger.disabled = False


@settings(max_examples=200, deadline=None)
@given(
    templates=st.lists(requests(), min_size=1, max_size=4),
    script=moves,
    num_blocks=st.sampled_from([5, 6, 9, 40]),
    max_num_seqs=st.sampled_from([1, 2, 5]),
    max_num_batched_tokens=st.sampled_from([5, 100, 128, 129, 600]),
    policy=st.sampled_from(["fcfs", "priority"]),
    share=st.sampled_from([True, True, True, False]),
)
def test_every_request_ends_once_with_its_own_tokens(
    templates: list[EngineRequest],
    script: list[object],
    num_blocks: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    policy: SchedulingPolicy,
    share: bool,
) -> None:
    info = engine_info(num_blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    drama = Drama(EngineConfig(scheduling_policy=policy, enable_prefix_caching=share), info, templates)
    for move in script:
        drama.move(move)
    drama.runner.fail_submit = drama.runner.fail_result = False
    drama.finish()

    for life in drama.lives:
        alone = tokens_alone(life.request, num_blocks * BLOCK_TOKENS)
        if life.finish_reason in ("stop", "length"):
            assert life.token_ids == alone
        else:
            assert life.finish_reason == "abort" or (life.finish_reason == "error" and drama.runner.num_resets)
            assert life.token_ids == alone[: len(life.token_ids)]
    stats = drama.core.stats()
    assert (stats.num_used_blocks, stats.num_leaked_blocks, stats.num_free_blocks) == (0, 0, num_blocks)
    assert (stats.num_running, stats.num_waiting) == (0, 0)


@settings(max_examples=30, deadline=None)
@given(batch=st.lists(requests(), min_size=2, max_size=6), num_blocks=st.sampled_from([5, 8]))
def test_a_pool_too_small_for_all_serves_all(batch: list[EngineRequest], num_blocks: int) -> None:
    drama = Drama(EngineConfig(), engine_info(num_blocks, max_num_batched_tokens=300), batch)
    for template in range(len(batch)):
        drama.move(Send(template))
    drama.finish()
    assert [life.finish_reason in ("stop", "length") for life in drama.lives] == [True] * len(batch)


@given(num_blocks=st.integers(1, 6), prompt_tokens=st.integers(1, 900), max_tokens=st.integers(1, 300))
def test_what_is_accepted_runs_alone_and_what_is_refused_names_the_limit(
    num_blocks: int, prompt_tokens: int, max_tokens: int
) -> None:
    drama = Drama(EngineConfig(), engine_info(num_blocks, max_model_len=700), [])
    limit = min(700, num_blocks * BLOCK_TOKENS)
    request = EngineRequest(
        request_id="",
        prompt_token_ids=prompt(0, prompt_tokens, 0, 0),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )
    if prompt_tokens + max_tokens > limit:
        with pytest.raises(ContextLengthError, match=f"{prompt_tokens} tokens.* {limit} tokens"):
            drama.add(request, "r")
    else:
        drama.add(request, "r")
        drama.finish()
        assert len(drama.lives[0].token_ids) == max_tokens
