"""A runner without a model, for the engine process: says "a" until max_tokens, and waits where a test wants it to.

`EngineConfig.hf_overrides` steers it: `load_gate` and `step_gate` name files without which loading and steps wait;
`load_error` is a CheckpointError's message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tamis.config import EngineConfig
from tamis.engine.messages import EngineInfo
from tamis.engine.plan import SampledToken, StepOutput, StepPlan
from tamis.errors import CheckpointError

TOKEN_ID = 64  # "a" in the harness's tokenizer
POLL_S = 0.005


class FakeStep:
    def __init__(self, plan: StepPlan, gate: str | None):
        self._plan = plan
        self._gate = gate

    def done(self) -> bool:
        return self._gate is None or Path(self._gate).exists()

    def result(self) -> StepOutput:
        wait_for(self._gate)
        sampled = {s.request_id: SampledToken(token_id=TOKEN_ID) for s in self._plan.scheduled if s.samples}
        return StepOutput(step_id=self._plan.step_id, sampled=sampled)


class FakeRunner:
    num_blocks = 33

    def __init__(self, gate: str | None):
        self._gate = gate

    def submit(self, plan: StepPlan) -> FakeStep:
        return FakeStep(plan, self._gate)

    def reset(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


def wait_for(gate: str | None) -> None:
    while gate is not None and not Path(gate).exists():
        time.sleep(POLL_S)


def load_engine(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[FakeRunner, EngineInfo]:
    progress("loading", 40)
    wait_for(config.hf_overrides.get("load_gate"))
    if "load_error" in config.hf_overrides:
        raise CheckpointError(config.hf_overrides["load_error"], hint="Download it again.")
    info = EngineInfo(
        model=config.model,
        vocab_size=300,
        max_model_len=1024,
        num_blocks=32,
        block_size=128,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        card={"dtype": "float32 (a CPU)"},
    )
    return FakeRunner(config.hf_overrides.get("step_gate")), info
