"""A StepPlan becomes tensors: the requests' persistent state, and one step's inputs."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tamis.attention.plan import Segment, StepTables
from tamis.config import BLOCK_TOKENS
from tamis.engine.plan import NewRequest, ScheduledRequest, StepPlan
from tamis.engine.sampling_params import SamplingParams


@dataclass
class RequestState:
    """What the runner keeps of a request between steps.

    Attributes:
        token_ids: prompt and output; grows by what is sampled here.
        num_prompt_tokens: leading prompt tokens.
        num_computed_tokens: tokens whose rows are written.
        block_ids: block table.
        sampling, stop_token_ids: see `NewRequest`.
        output_counts: token id → how often it stands in the output; kept up to date by `append`.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    stop_token_ids: list[int]
    output_counts: Counter[int] = field(init=False)

    def __post_init__(self) -> None:
        self.output_counts = Counter(self.token_ids[self.num_prompt_tokens :])

    @property
    def num_output_tokens(self) -> int:
        """How many tokens were generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @functools.cached_property
    def prompt_tokens(self) -> frozenset[int]:
        """The prompt's distinct tokens."""
        return frozenset(self.token_ids[: self.num_prompt_tokens])

    def append(self, token_id: int) -> None:
        """Take in a sampled token."""
        self.token_ids.append(token_id)
        self.output_counts[token_id] += 1


@dataclass(frozen=True)
class StepInputs:
    """One step's tensors.

    Attributes:
        token_ids: [T] int64.
        tables: positions, slots and block tables.
        num_positions: a host bound above every position.
        sample_rows: [N] int64, the tokens whose hidden state yields a next token.
        sampled_ids: the requests of those rows, in order.
    """

    token_ids: Tensor
    tables: StepTables
    num_positions: int
    sample_rows: Tensor
    sampled_ids: list[str]


class RequestStates:
    """All requests the runner holds, kept up to date from plans."""

    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}

    def __getitem__(self, request_id: str) -> RequestState:
        return self._states[request_id]

    def clear(self) -> None:
        """Forget every request."""
        self._states.clear()

    def apply(self, plan: StepPlan) -> None:
        """Take in a plan's differences: forget the finished, add the new, append block ids."""
        for request_id in plan.finished:
            self._states.pop(request_id, None)
        for new in plan.new:
            self._states[new.request_id] = _state_of(new)
        for scheduled in plan.scheduled:
            self._states[scheduled.request_id].block_ids.extend(scheduled.new_block_ids)

    def inputs(self, scheduled: list[ScheduledRequest], device: torch.device) -> StepInputs:
        """Gather the step's tokens, positions, slots and tables; marks the tokens as computed."""
        token_ids: list[int] = []
        positions: list[Tensor] = []
        slots: list[Tensor] = []
        segments: list[Segment] = []
        sample_rows: list[int] = []
        width = max(len(self._states[s.request_id].block_ids) for s in scheduled)
        block_tables = torch.zeros(len(scheduled), width, dtype=torch.int64)
        for row, item in enumerate(scheduled):
            state = self._states[item.request_id]
            start, stop = state.num_computed_tokens, state.num_computed_tokens + item.num_tokens
            table = torch.tensor(state.block_ids)
            block_tables[row, : len(table)] = table
            position = torch.arange(start, stop)
            positions.append(position)
            slots.append(table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS)
            segments.append(Segment(len(token_ids), item.num_tokens, stop))
            token_ids.extend(state.token_ids[start:stop])
            if item.samples:
                sample_rows.append(len(token_ids) - 1)
            state.num_computed_tokens = stop
        lengths = torch.tensor([s.length for s in segments])
        tables = StepTables(
            segments=segments,
            positions=torch.cat(positions).to(device),
            slots=torch.cat(slots).to(device),
            block_tables=block_tables.to(device),
            request_of_token=torch.arange(len(segments)).repeat_interleave(lengths).to(device),
        )
        return StepInputs(
            token_ids=torch.tensor(token_ids, device=device),
            tables=tables,
            num_positions=max(s.context_tokens for s in segments),
            sample_rows=torch.tensor(sample_rows, dtype=torch.int64, device=device),
            sampled_ids=[s.request_id for s in scheduled if s.samples],
        )


def _state_of(new: NewRequest) -> RequestState:
    return RequestState(
        token_ids=list(new.token_ids),
        num_prompt_tokens=new.num_prompt_tokens,
        num_computed_tokens=new.num_computed_tokens,
        block_ids=list(new.block_ids),
        sampling=new.sampling,
        stop_token_ids=list(new.stop_token_ids),
    )
