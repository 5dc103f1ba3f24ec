"""One request inside the engine: its tokens, how far they are computed, and the blocks that hold them."""

from __future__ import annotations

import enum

from tamis.engine.messages import EngineRequest
from tamis.engine.prefix_cache import HashChain
from tamis.engine.sampling_params import SamplingParams


class RequestState(enum.Enum):
    """WAITING → RUNNING → FINISHED, with any number of detours RUNNING → PREEMPTED → RUNNING."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """A live request.

    Args:
        request: as it arrived.
        sampling: its sampling, with a seed.
        max_tokens: output tokens at which it ends, worked out from the limits.
        rank: (priority, order of arrival); lower runs first.
        arrival_s: clock reading.

    Attributes:
        token_ids: prompt and committed output.
        num_computed_tokens: leading tokens whose rows are written once every plan made so far has run. Runs ahead of
            `token_ids` by the tokens still in flight.
        num_prefill_tokens: tokens known at the last admission; below it the request prefills, beyond it decodes.
        num_in_flight: sampled tokens that planned steps owe.
        block_table: block i holds tokens [128·i, 128·(i+1)).
        num_named_blocks: leading blocks that the prefix cache has been told of.
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        first_scheduled_s, last_admitted_s: clock readings; None before.
    """

    __slots__ = (
        "arrival_s",
        "block_table",
        "first_scheduled_s",
        "hash_chain",
        "last_admitted_s",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight",
        "num_named_blocks",
        "num_preemptions",
        "num_prefill_tokens",
        "num_prompt_tokens",
        "rank",
        "request_id",
        "sampling",
        "state",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        request: EngineRequest,
        *,
        sampling: SamplingParams,
        max_tokens: int,
        rank: tuple[int, int],
        arrival_s: float,
    ):
        self.request_id = request.request_id
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.rank = rank
        self.arrival_s = arrival_s
        eos_token_ids = [] if sampling.ignore_eos else request.eos_token_ids
        self.stop_token_ids = frozenset(eos_token_ids).union(sampling.stop_token_ids)

        self.state = RequestState.WAITING
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_prefill_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_in_flight = 0
        self.block_table: list[int] = []
        self.num_named_blocks = 0
        self.hash_chain = HashChain(() if request.cache_salt is None else (f"salt={request.cache_salt}",))

        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.first_scheduled_s: float | None = None
        self.last_admitted_s: float | None = None

    @property
    def num_output_tokens(self) -> int:
        """Committed output tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens known at admission are still to be computed."""
        return self.num_computed_tokens < self.num_prefill_tokens

    @property
    def will_have_ended(self) -> bool:
        """Whether the tokens in flight reach `max_tokens`, so that nothing more is to be planned."""
        return len(self.token_ids) - self.num_prompt_tokens + self.num_in_flight >= self.max_tokens
