"""What an engine process loads in these tests; named by "module:function"."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tamis.config import EngineConfig
from tamis.engine.messages import EngineInfo
from tamis.engine.plan import StepOutput, StepPlan
from tamis.errors import CheckpointError
from tests.engine.fake_runner import FakePendingStep, FakeRunner, engine_info

INFO = engine_info(num_blocks=4096, max_model_len=500_000)
STEP_S = 0.001


class SlowPendingStep(FakePendingStep):
    """Takes as long as a small model."""

    def result(self) -> StepOutput:
        """The output, after a while."""
        time.sleep(STEP_S)
        return super().result()


class SlowRunner(FakeRunner):
    """A runner that can be overtaken by its client."""

    def submit(self, plan: StepPlan) -> FakePendingStep:
        """As the base class, but the result takes a while."""
        return SlowPendingStep(super().submit(plan).result())


def quick(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[FakeRunner, EngineInfo]:
    """Loads at once."""
    progress("loading", 50)
    return SlowRunner(INFO), INFO


def chatty(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[FakeRunner, EngineInfo]:
    """Writes to both standard streams."""
    print("a line on standard output")
    print("the last line, on standard error", file=sys.stderr, flush=True)
    return quick(config, progress)


def refusing(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[FakeRunner, EngineInfo]:
    """A user's mistake."""
    raise CheckpointError(f"Model {config.model!r} has no tokenizer.", param="model", hint="Add tokenizer.json.")


def endless(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[FakeRunner, EngineInfo]:
    """Never comes back and never looks up."""
    progress("loading", 7)
    threading.Event().wait()
    return quick(config, progress)


def with_child(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[FakeRunner, EngineInfo]:
    """Has a process of its own that outlives it for a while and holds its output open."""
    code = f"import os, time\nwhile os.getppid() == {os.getpid()}: time.sleep(0.05)\ntime.sleep(3)"
    subprocess.Popen([sys.executable, "-c", code])
    return quick(config, progress)


def exiting(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[FakeRunner, EngineInfo]:
    """Ends the process in the middle of the load, as a library may."""
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(9)
