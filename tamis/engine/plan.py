"""What the engine tells the runner to do in one step, and what comes back.

A plan names new requests whole and running ones by difference (`StepPlan`). The runner keeps each request's
tokens and block table from the plan that introduced it until the plan that lists it in `finished`; a token that
it sampled is the next decode's input without a round trip, so that step n+1 can be planned while step n runs.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tamis.engine.sampling_params import SamplingParams


class NewRequest(msgspec.Struct, kw_only=True):
    """A request that the runner does not hold: new, or back after preemption.

    Attributes:
        request_id: unique among live requests.
        token_ids: prompt and, after preemption, what was generated so far.
        num_prompt_tokens: how many of them are prompt.
        num_computed_tokens: leading tokens whose row contents are already in the pool (prefix hit).
        block_ids: the request's block table so far, in order; block i holds tokens [128·i, 128·(i+1)).
        sampling: with `seed` always set.
        stop_token_ids: tokens that must not be sampled before `sampling.min_tokens` (EOS included unless ignored).
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    stop_token_ids: list[int] = []


class ScheduledRequest(msgspec.Struct, kw_only=True):
    """One request's part of a step.

    Attributes:
        request_id: the request.
        num_tokens: tokens computed for it in this step (1 for decode, a prefill chunk otherwise).
        new_block_ids: appended to its block table before the step (empty for a request in `StepPlan.new`).
        samples: whether the step's last token yields a next token (false inside a chunked prefill).
    """

    request_id: str
    num_tokens: int
    new_block_ids: list[int] = []
    samples: bool = True


class StepPlan(msgspec.Struct, kw_only=True):
    """One engine iteration. `scheduled` is decode first, then prefill chunks; order carries no meaning for results.

    Attributes:
        step_id: counts up by one.
        new: requests in this plan that the runner does not hold yet; each also stands in `scheduled`.
        scheduled: what is computed.
        finished: requests that the runner forgets before the step and before it looks at `new` (finished, aborted or
            preempted); an id may stand in both when a request comes back.
    """

    step_id: int
    new: list[NewRequest]
    scheduled: list[ScheduledRequest]
    finished: list[str]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step, all requests together."""
        return sum(s.num_tokens for s in self.scheduled)


class TokenLogprobs(msgspec.Struct, kw_only=True):
    """Natural-log probabilities at one output position, of the distribution before temperature and cuts.

    Attributes:
        logprob: of the token that was chosen.
        top_token_ids, top_logprobs: the k most likely, best first (k = SamplingParams.logprobs).
    """

    logprob: float
    top_token_ids: list[int] = []
    top_logprobs: list[float] = []


class SampledToken(msgspec.Struct, kw_only=True):
    """One request's next token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class StepOutput(msgspec.Struct, kw_only=True):
    """What a step produced.

    Attributes:
        step_id: of the plan.
        sampled: request id → next token, for every scheduled request with `samples` that did not fail.
        failed: request id → one sentence why there is no token; ends that request only.
    """

    step_id: int
    sampled: dict[str, SampledToken]
    failed: dict[str, str] = {}


class PendingStep(Protocol):
    """A submitted step."""

    def result(self) -> StepOutput:
        """Block until the step is done; re-raises what the step raised."""
        ...

    def done(self) -> bool:
        """Whether `result` would return at once."""
        ...


class Runner(Protocol):
    """Executes plans in the order in which they are submitted.

    Attributes:
        num_blocks: blocks of the pool, the null block 0 included; `EngineInfo.num_blocks` counts without it.
    """

    num_blocks: int

    def submit(self, plan: StepPlan) -> PendingStep:
        """Start a step and return at once."""
        ...

    def reset(self) -> None:
        """Forget every request after a failed step; no step may be pending."""
        ...

    def shutdown(self) -> None:
        """Wait for pending steps and free what is held."""
        ...
