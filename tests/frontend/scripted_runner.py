"""A runner that says a fixed reply, token by token, to every request."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.engine.plan import SampledToken, StepOutput, StepPlan, TokenLogprobs


@dataclass
class Done:
    """A step that was done when it was submitted."""

    output: StepOutput

    def result(self) -> StepOutput:
        return self.output

    def done(self) -> bool:
        return True


class ScriptedRunner:
    """Token i of every output is `reply[i % len(reply)]`; fails in the steps named by `failing_steps`."""

    def __init__(self, reply: list[int], num_blocks: int = 64, failing_steps: frozenset[int] = frozenset()) -> None:
        self.num_blocks = num_blocks
        self.reply = reply
        self.failing_steps = failing_steps
        self.generated: dict[str, int] = {}
        self.wants_logprobs: dict[str, int | None] = {}
        self.max_held = 0
        self.is_shut_down = False

    def submit(self, plan: StepPlan) -> Done:
        for request_id in plan.finished:
            self.generated.pop(request_id, None)
        for new in plan.new:
            self.generated[new.request_id] = len(new.token_ids) - new.num_prompt_tokens
            self.wants_logprobs[new.request_id] = new.sampling.logprobs
        self.max_held = max(self.max_held, len(self.generated))
        if plan.step_id in self.failing_steps:
            raise RuntimeError("a kernel failed")
        sampled = {s.request_id: self._sample(s.request_id) for s in plan.scheduled if s.samples}
        return Done(StepOutput(step_id=plan.step_id, sampled=sampled))

    def _sample(self, request_id: str) -> SampledToken:
        token_id = self.reply[self.generated[request_id] % len(self.reply)]
        self.generated[request_id] += 1
        top = self.wants_logprobs[request_id]
        if top is None:
            return SampledToken(token_id=token_id)
        entry = TokenLogprobs(logprob=-0.5, top_token_ids=[token_id, 0][:top], top_logprobs=[-0.5, -2.0][:top])
        return SampledToken(token_id=token_id, logprobs=entry)

    def reset(self) -> None:
        self.generated.clear()

    def shutdown(self) -> None:
        self.is_shut_down = True
