"""The engine: a scheduler and a runner, one step planned ahead of the one that runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from tamis.config import EngineConfig
from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, ErrorInfo, RequestDelta
from tamis.engine.plan import PendingStep, Runner, StepOutput, StepPlan
from tamis.engine.scheduler import Scheduler
from tamis.errors import TamisError

logger = logging.getLogger(__name__)


class EngineCore:
    """Drives requests from arrival to their last token. Not thread-safe; `EngineLoop` gives it a thread.

    Args:
        config: scheduling policy, seed, queue limit, prefix caching.
        runner: executes plans; the core owns it from here on.
        info: limits of the loaded engine.
        clock: seconds, monotonic.
    """

    def __init__(
        self, config: EngineConfig, runner: Runner, info: EngineInfo, clock: Callable[[], float] = time.monotonic
    ):
        self.info = info
        self._clock = clock
        self._runner = runner
        self._scheduler = Scheduler(config, info, clock)
        self._submitted: tuple[StepPlan, PendingStep] | None = None
        self._last_step_s = 0.0
        self._submitted_at_s = 0.0

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; raises what `Scheduler.add` raises."""
        self._scheduler.add(request)

    def abort(self, request_ids: Iterable[str]) -> list[RequestDelta]:
        """End requests and free their blocks at once. Returns a last delta for each that was live.

        The step that runs just now still computes for them; later ones do not.
        """
        return self._scheduler.abort(request_ids)

    def abort_all(self) -> list[RequestDelta]:
        """`abort` of every live request."""
        return self._scheduler.abort(self._scheduler.live_request_ids())

    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""
        return self._submitted is not None or self._scheduler.has_unfinished()

    def step(self) -> list[RequestDelta]:
        """Wait for one step and return its news; the next step is running on return.

        A step that fails ends its requests with an error; all others go on. An exception from here means that the
        engine itself is broken.
        """
        if self._submitted is None:
            plan = self._scheduler.schedule()
            if plan is None:
                if self._scheduler.has_unfinished():
                    raise RuntimeError(f"nothing to run for the live requests {self._scheduler.live_request_ids()}")
                return []
            deltas = self._submit(plan)
            if self._submitted is None:
                return deltas
        plan, pending = self._submitted
        ahead = self._scheduler.schedule()
        try:
            output = pending.result()
            _check(plan, output)
        except Exception as error:
            return self._fail(plan, error)
        self._last_step_s = self._clock() - self._submitted_at_s
        self._submitted = None
        deltas = self._scheduler.commit(plan, output)
        if ahead is not None:
            ahead = self._scheduler.prune(ahead)
        if ahead is not None:
            deltas += self._submit(ahead)
        return deltas

    def stats(self) -> EngineStats:
        """A snapshot."""
        stats = self._scheduler.stats()
        stats.step_s = self._last_step_s
        return stats

    def count_leaked_blocks(self) -> int:
        """A full audit of the pool, see `BlockPool.count_leaked`; O(pool)."""
        return self._scheduler.count_leaked_blocks()

    def shutdown(self) -> None:
        """Wait for the running step and free the runner. Live requests are dropped: abort them first."""
        if self._submitted is not None:
            try:
                self._submitted[1].result()
            except Exception:
                logger.exception("The last step failed.")
            self._submitted = None
        self._runner.shutdown()

    def _submit(self, plan: StepPlan) -> list[RequestDelta]:
        self._submitted_at_s = self._clock()
        try:
            self._submitted = (plan, self._runner.submit(plan))
        except Exception as error:
            return self._fail(plan, error)
        return []

    def _fail(self, plan: StepPlan, error: Exception) -> list[RequestDelta]:
        logger.error("Step %d failed; its requests end with an error.", plan.step_id, exc_info=error)
        self._submitted = None
        self._runner.reset()
        if not isinstance(error, TamisError):
            error = TamisError(
                f"The engine failed while it computed this request ({type(error).__name__}).",
                hint="Send it again; the server's log tells more.",
            )
        return self._scheduler.fail(plan, ErrorInfo.of(error))


def _check(plan: StepPlan, output: StepOutput) -> None:
    """The runner must answer for what was asked, or the tokens of two requests could be mixed up unseen."""
    asked = {entry.request_id for entry in plan.scheduled if entry.samples}
    if output.step_id != plan.step_id or output.sampled.keys() | output.failed.keys() != asked:
        raise RuntimeError(
            f"step {plan.step_id} samples for {sorted(asked)}, but the runner's answer is for step {output.step_id} "
            f"and {sorted(output.sampled)}"
        )
