"""A step under construction, and later the memory of what it was planned for."""

from __future__ import annotations

from tamis.engine.plan import NewRequest, ScheduledRequest, StepPlan
from tamis.engine.request import Request


class PlannedStep:
    """Entries of one step, decode first.

    Args:
        token_budget: most tokens computed in the step.

    Attributes:
        budget_tokens: what is left of it.
        requests: request id → the very request that was planned. An id may be taken anew while the step runs, so
            results find their request here and not by id.
        prefills: ids of prefill entries. They are never withdrawn: their blocks have been offered to others.
        preempted: ids of requests that lost their blocks while this step was planned.
    """

    def __init__(self, token_budget: int):
        self.budget_tokens = token_budget
        self.requests: dict[str, Request] = {}
        self.prefills: set[str] = set()
        self.preempted: set[str] = set()
        self._new: list[NewRequest] = []
        self._entries: dict[str, ScheduledRequest] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add_decode(self, request: Request, new_block_ids: list[int]) -> None:
        """Compute the request's latest token, known or in flight, and sample the next."""
        request.num_computed_tokens += 1
        request.num_in_flight += 1
        self._add(request, ScheduledRequest(request_id=request.request_id, num_tokens=1, new_block_ids=new_block_ids))

    def add_chunk(self, request: Request, num_tokens: int, new_block_ids: list[int]) -> None:
        """Compute known tokens; sample when they are the last."""
        request.num_computed_tokens += num_tokens
        samples = not request.is_prefilling
        if samples:
            request.num_in_flight += 1
        self.prefills.add(request.request_id)
        self._add(
            request,
            ScheduledRequest(
                request_id=request.request_id, num_tokens=num_tokens, new_block_ids=new_block_ids, samples=samples
            ),
        )

    def introduce(self, request: Request) -> None:
        """Tell the runner of a request whole, with the block table it has now. Call it before `add_chunk`."""
        self._new.append(
            NewRequest(
                request_id=request.request_id,
                token_ids=request.token_ids.copy(),
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=request.num_computed_tokens,
                block_ids=request.block_table.copy(),
                sampling=request.sampling,
                stop_token_ids=sorted(request.stop_token_ids),
            )
        )

    def withdraw_decode(self, request: Request) -> None:
        """Undo `add_decode`, if it was done, while the plan is being made."""
        if self._entries.pop(request.request_id, None) is not None:
            del self.requests[request.request_id]
            request.num_computed_tokens -= 1
            request.num_in_flight -= 1
            self.budget_tokens += 1

    def to_plan(self, step_id: int, finished: list[str]) -> StepPlan:
        """The plan to hand to the runner."""
        return StepPlan(step_id=step_id, new=self._new, scheduled=list(self._entries.values()), finished=finished)

    def _add(self, request: Request, entry: ScheduledRequest) -> None:
        self._entries[request.request_id] = entry
        self.requests[request.request_id] = request
        self.budget_tokens -= entry.num_tokens
