"""Which tokens are computed next, in which blocks, and what becomes of the tokens that come back.

`schedule()` plans a step; `commit()` takes its output. The plan of step n+1 may be made before step n is committed:
a decoding request then counts as one token longer than what is known. What keeps this sound:

- Steps execute in the order of their plans, and within a step all rows are written before any is read. So a block
  may be freed, given away or shared as soon as it is planned to be written.
- Blocks of known tokens are offered to other requests when their prefill is planned; a planned prefill is therefore
  never withdrawn. Blocks that sampled tokens complete are offered at commit.
- A planned decode may be withdrawn: by preemption while planning, by `prune` when the step before ended its request.
- A request that is owed a token (`num_in_flight`) is not admitted again before the token has come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from tamis.config import BLOCK_TOKENS, EngineConfig
from tamis.engine.block_tables import BlockTables
from tamis.engine.intake import Intake
from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, ErrorInfo, FinishReason, RequestDelta
from tamis.engine.plan import SampledToken, StepOutput, StepPlan
from tamis.engine.planned_step import PlannedStep
from tamis.engine.request import Request, RequestState
from tamis.engine.request_queue import RequestQueue
from tamis.errors import InvalidRequestError, OverloadedError, TamisError

MAX_RETRY_AFTER_S = 60


class Scheduler:
    """Continuous batching over one block pool.

    Requests are ranked by (priority, arrival); under the policy "fcfs" all priorities are 0. Every step serves decodes
    first, then prefill chunks of running requests and admissions, better ranks first. When blocks run out, the worst
    running request is preempted: it keeps its tokens and waits to be computed again. The best request can always
    evict all others and fits the pool alone, so there is always progress.

    Args:
        config: policy, seed, queue limit, prefix caching.
        info: limits of the loaded engine.
        clock: seconds, monotonic.
    """

    def __init__(self, config: EngineConfig, info: EngineInfo, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._max_num_seqs = info.max_num_seqs
        self._max_num_batched_tokens = info.max_num_batched_tokens
        self._max_queued_requests = config.max_queued_requests
        self._intake = Intake(config, info)
        self._tables = BlockTables(info.num_blocks, share_prefixes=config.enable_prefix_caching)
        self._requests: dict[str, Request] = {}
        self._waiting = RequestQueue()
        self._running = RequestQueue()
        self._steps: dict[int, PlannedStep] = {}
        self._next_step_id = 0
        # What the runner holds, and what it has to forget with the next plan.
        self._in_runner: set[str] = set()
        self._finished: list[str] = []
        self._mean_run_s = 1.0
        self._stats = EngineStats()

    # Requests come and go.

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            OverloadedError: the queue is full.
            InvalidRequestError: it cannot be served as written, or its id is taken (see also `Intake.accept`).
        """
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request_id {request.request_id!r} is already running.", param="request_id")
        if len(self._waiting) >= self._max_queued_requests:
            raise OverloadedError(
                f"{len(self._waiting)} requests are waiting, and the limit is {self._max_queued_requests} "
                "(--max-queued-requests).",
                retry_after_s=self._retry_after_s(),
                hint="Try again later.",
            )
        accepted = self._intake.accept(request, self._clock())
        self._requests[accepted.request_id] = accepted
        self._waiting.add(accepted)

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End requests at once; unknown ids are ignored. Tokens that planned steps still bring for them are dropped."""
        deltas = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                self._finish(request)
                deltas.append(RequestDelta(request_id=request_id, finish_reason="abort"))
        return deltas

    def has_unfinished(self) -> bool:
        """Whether any request is live."""
        return bool(self._requests)

    def live_request_ids(self) -> list[str]:
        """Ids of all live requests."""
        return list(self._requests)

    # A step is planned.

    def schedule(self) -> StepPlan | None:
        """Plan the next step, or None when nothing can be computed before a planned step is committed."""
        step = PlannedStep(self._max_num_batched_tokens)
        self._plan_decodes(step)
        self._plan_prefills(step)
        if not step:
            return None
        plan = step.to_plan(self._next_step_id, self._finished)
        self._steps[plan.step_id] = step
        self._next_step_id += 1
        self._finished = []
        return plan

    def _plan_decodes(self, step: PlannedStep) -> None:
        for request in self._running.snapshot():
            if request.is_prefilling or request.will_have_ended or request.state is not RequestState.RUNNING:
                continue
            if not step.budget_tokens:
                break
            new_block_ids: list[int] = []
            if request.num_computed_tokens % BLOCK_TOKENS == 0:
                if not self._free_blocks(1, request, step):
                    continue
                new_block_ids = self._tables.grow(request, 1)
            step.add_decode(request, new_block_ids)

    def _plan_prefills(self, step: PlannedStep) -> None:
        prefilling = [r for r in self._running if r.is_prefilling]
        prefilling.reverse()
        admitting = True
        while step.budget_tokens:
            waiting = self._waiting.first() if admitting else None
            if waiting is not None and (not prefilling or waiting.rank < prefilling[-1].rank):
                admitting = self._admit(waiting, step)
            elif prefilling:
                request = prefilling.pop()
                if request.state is RequestState.RUNNING:
                    self._plan_chunk(request, step)
            else:
                break

    def _plan_chunk(self, request: Request, step: PlannedStep) -> None:
        computed = request.num_computed_tokens
        num_tokens = min(step.budget_tokens, request.num_prefill_tokens - computed)
        missing = self._tables.missing(request, computed + num_tokens)
        if not self._free_blocks(missing, request, step):
            # All others rank better: take what there is. The rest comes when they are done.
            missing = self._tables.pool.num_free_blocks
            num_tokens = min(num_tokens, (len(request.block_table) + missing) * BLOCK_TOKENS - computed)
            if not num_tokens:
                return
        new_block_ids = self._tables.grow(request, missing)
        step.add_chunk(request, num_tokens, new_block_ids)
        self._tables.name_blocks(request, request.num_computed_tokens)

    def _admit(self, request: Request, step: PlannedStep) -> bool:
        if request.num_in_flight or request.request_id in step.preempted:
            return False
        prefix = self._tables.find_prefix(request)
        if not self._make_room(request, prefix, step):
            return False
        self._waiting.remove(request)
        self._running.add(request)
        request.state = RequestState.RUNNING
        request.num_prefill_tokens = len(request.token_ids)
        request.last_admitted_s = self._clock()
        self._tables.attach_prefix(request, prefix)
        if request.first_scheduled_s is None:
            request.first_scheduled_s = request.last_admitted_s
            request.num_cached_tokens = request.num_computed_tokens
            self._stats.prompt_tokens += request.num_prompt_tokens
            self._stats.prefix_queries_tokens += request.num_prompt_tokens
            self._stats.prefix_hits_tokens += request.num_cached_tokens
        num_tokens = min(step.budget_tokens, request.num_prefill_tokens - request.num_computed_tokens)
        self._tables.grow(request, self._tables.missing(request, request.num_computed_tokens + num_tokens))
        step.introduce(request)
        step.add_chunk(request, num_tokens, [])
        self._tables.name_blocks(request, request.num_computed_tokens)
        self._in_runner.add(request.request_id)
        return True

    # Room is made.

    def _free_blocks(self, count: int, request: Request, step: PlannedStep) -> bool:
        """Preempt running requests of worse rank, worst first, until `count` blocks are free."""
        while count > self._tables.pool.num_free_blocks:
            victim = next(self._victims(request.rank, step), None)
            if victim is None:
                return False
            self._preempt(victim, step)
        return True

    def _make_room(self, request: Request, prefix: list[int], step: PlannedStep) -> bool:
        """Whether a waiting request may run now; preempts for it only requests of worse *priority*.

        Blocks are taken as tokens need them, but a request comes in only when all its present tokens have room beside
        what running prefills will yet take: otherwise it would soon be preempted again.
        """
        while True:
            seqs_short = len(self._running) + 1 - self._max_num_seqs
            blocks_short = (
                self._tables.blocks_to_admit(request, prefix)
                + self._tables.blocks_to_prefill(self._running)
                - self._tables.pool.num_free_blocks
            )
            if seqs_short <= 0 and blocks_short <= 0:
                return True
            victims = list(self._victims((request.rank[0] + 1, -1), step))
            # The most that they can give back; shared blocks may make it less.
            gain = sum(len(v.block_table) for v in victims) + self._tables.blocks_to_prefill(victims)
            if len(victims) < max(seqs_short, 1) or gain < blocks_short:
                return False
            self._preempt(victims[0], step)

    def _victims(self, rank: tuple[int, int], step: PlannedStep) -> Iterator[Request]:
        """Running requests of worse rank that may lose their blocks, worst first."""
        for request in reversed(self._running):
            if request.rank <= rank:
                break
            if request.request_id not in step.prefills:
                yield request

    def _preempt(self, request: Request, step: PlannedStep | None) -> None:
        """Back to waiting with its tokens; those in flight will still be its own."""
        if step is not None:
            step.withdraw_decode(request)
            step.preempted.add(request.request_id)
        self._running.remove(request)
        self._waiting.add(request)
        request.state = RequestState.PREEMPTED
        request.num_preemptions += 1
        self._stats.preemptions += 1
        self._tables.release(request)
        self._leave_runner(request)

    # A step comes back.

    def commit(self, plan: StepPlan, output: StepOutput) -> list[RequestDelta]:
        """Take the tokens of the oldest planned step; one delta for each request that it advanced."""
        step = self._steps.pop(plan.step_id)
        self._stats.steps += 1
        deltas = []
        for entry in plan.scheduled:
            if not entry.samples:
                continue
            request = step.requests[entry.request_id]
            request.num_in_flight -= 1
            if request.state is RequestState.FINISHED:
                continue
            if entry.request_id in output.failed:
                error = ErrorInfo.of(TamisError(output.failed[entry.request_id]))
                self._finish(request)
                deltas.append(RequestDelta(request_id=request.request_id, finish_reason="error", error=error))
            else:
                deltas.append(self._append(request, output.sampled[entry.request_id]))
        return deltas

    def _append(self, request: Request, sampled: SampledToken) -> RequestDelta:
        # To sample this token, the step had all tokens before it computed.
        if request.block_table and len(request.token_ids) % BLOCK_TOKENS == 0:
            self._tables.name_blocks(request, len(request.token_ids))
        token_id = sampled.token_id
        request.token_ids.append(token_id)
        self._stats.generation_tokens += 1
        num_output_tokens = len(request.token_ids) - request.num_prompt_tokens
        delta = RequestDelta(
            request_id=request.request_id,
            token_ids=[token_id],
            logprobs=None if sampled.logprobs is None else [sampled.logprobs],
            num_cached_tokens=request.num_cached_tokens,
        )
        if num_output_tokens == 1 and request.first_scheduled_s is not None:
            delta.queued_s = request.first_scheduled_s - request.arrival_s
        finish_reason: FinishReason | None = None
        if token_id in request.stop_token_ids and num_output_tokens >= request.sampling.min_tokens:
            finish_reason = "stop"
            delta.stop_token_id = token_id
        elif num_output_tokens >= request.max_tokens:
            finish_reason = "length"
        if finish_reason is not None:
            delta.finish_reason = finish_reason
            self._finish(request)
        return delta

    def prune(self, plan: StepPlan) -> StepPlan | None:
        """The plan without decodes of requests that have ended since it was made; None when nothing is left.

        For a plan that has not been submitted.
        """
        step = self._steps[plan.step_id]
        kept = [
            entry
            for entry in plan.scheduled
            if entry.request_id in step.prefills or step.requests[entry.request_id].state is not RequestState.FINISHED
        ]
        if kept:
            plan.scheduled = kept
            return plan
        del self._steps[plan.step_id]
        self._next_step_id = plan.step_id
        self._finished = plan.finished + self._finished
        return None

    def fail(self, plan: StepPlan, error: ErrorInfo) -> list[RequestDelta]:
        """The step broke: end its requests, drop later plans, compute the other running requests afresh.

        The runner is taken to have forgotten everything (`Runner.reset`), the pool's contents to be lost.
        """
        failed = self._steps[plan.step_id].requests.values()
        deltas = []
        for request in failed:
            if request.state is not RequestState.FINISHED:
                self._finish(request)
                deltas.append(RequestDelta(request_id=request.request_id, finish_reason="error", error=error))
        for request in self._running.snapshot():
            self._preempt(request, None)
        for request in self._waiting:
            request.num_in_flight = 0
        self._steps.clear()
        self._next_step_id = plan.step_id + 1
        self._tables.pool.clear_prefix_cache()
        self._in_runner.clear()
        self._finished.clear()
        return deltas

    def _finish(self, request: Request) -> None:
        if request.state is RequestState.RUNNING:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        if request.last_admitted_s is not None:
            self._mean_run_s += 0.1 * (self._clock() - request.last_admitted_s - self._mean_run_s)
        request.state = RequestState.FINISHED
        self._tables.release(request)
        self._leave_runner(request)
        del self._requests[request.request_id]

    def _leave_runner(self, request: Request) -> None:
        if request.request_id in self._in_runner:
            self._in_runner.remove(request.request_id)
            self._finished.append(request.request_id)

    # Accounts.

    def stats(self) -> EngineStats:
        """A snapshot of gauges and counters; `step_s` is the caller's to fill."""
        pool, stats = self._tables.pool, self._stats
        stats.num_running, stats.num_waiting = len(self._running), len(self._waiting)
        stats.num_free_blocks = pool.num_free_blocks
        stats.num_cached_blocks = pool.num_cached_blocks
        stats.num_used_blocks = pool.num_used_blocks
        # Equal sums mean that there is nothing to look for: counting is O(pool), and gauges are read often.
        held = sum(len(r.block_table) for r in self._running)
        stats.num_leaked_blocks = 0 if held == pool.num_references else self.count_leaked_blocks()
        return msgspec.structs.replace(stats)

    def count_leaked_blocks(self) -> int:
        """Blocks with more references than live requests hold; raises RuntimeError on other contradictions."""
        return self._tables.pool.count_leaked(r.block_table for r in self._requests.values())

    def _retry_after_s(self) -> int:
        waves = len(self._waiting) / self._max_num_seqs
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(waves * self._mean_run_s)))
