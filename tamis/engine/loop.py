"""The thread's view of an engine: load it, then take commands and emit events until told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from tamis.config import EngineConfig
from tamis.engine.client import Stage
from tamis.engine.core import EngineCore
from tamis.engine.messages import EngineInfo, ErrorInfo
from tamis.engine.plan import Runner
from tamis.engine.protocol import (
    Abort,
    Add,
    Command,
    Deltas,
    Died,
    Event,
    GetStats,
    Loaded,
    LoadFailed,
    Loading,
    Refused,
    Stats,
    Stop,
    Unreadable,
)
from tamis.errors import TamisError

logger = logging.getLogger(__name__)

STOPPED = "The engine was shut down."

Progress = Callable[[Stage, int], None]
Load = Callable[[Progress], tuple[Runner, EngineInfo]]


class LoadCancelled(Exception):
    """Raised out of the progress callback when the engine was stopped while it loaded."""


def run_engine(
    config: EngineConfig,
    load: Load,
    commands: SimpleQueue[Command | Unreadable],
    emit: Callable[[Event], None],
    stopping: threading.Event,
) -> bool:
    """An engine's whole life, on the calling thread.

    Args:
        config: for the scheduler.
        load: builds the runner; calls its argument with a stage and a percentage now and then.
        commands: from any thread.
        emit: called on this thread (or on threads of `load`) with each event; `Died` or `LoadFailed` is the last.
        stopping: set together with the command `Stop`, so that a load can be cut short.

    Returns:
        Whether it ended because it was told to.
    """
    try:
        runner, info = load(_LoadProgress(emit, stopping))
    except LoadCancelled:
        emit(Died(STOPPED))
        return True
    except TamisError as error:
        emit(LoadFailed(ErrorInfo.of(error)))
        return False
    except Exception as error:
        logger.exception("Loading failed.")
        emit(LoadFailed(ErrorInfo.of(TamisError(f"The engine could not be loaded ({_one_line(error)})."))))
        return False
    emit(Loaded(info))
    try:
        EngineLoop(EngineCore(config, runner, info), commands, emit).run()
    except Exception as error:
        logger.exception("The engine died.")
        emit(Died(f"The engine died ({_one_line(error)})."))
        return False
    emit(Died(STOPPED))
    return True


class EngineLoop:
    """Steps a core as long as it has work and sleeps on the command queue when it has none."""

    def __init__(self, core: EngineCore, commands: SimpleQueue[Command | Unreadable], emit: Callable[[Event], None]):
        self._core = core
        self._commands = commands
        self._emit = emit

    def run(self) -> None:
        """Until `Stop`; what is live then is aborted."""
        core = self._core
        while self._obey():
            if core.has_unfinished():
                deltas = core.step()
                if deltas:
                    self._emit(Deltas(deltas))
        deltas = core.abort_all()
        if deltas:
            self._emit(Deltas(deltas))
        core.shutdown()

    def _obey(self) -> bool:
        """Take all commands that are there, waiting for one only when there is nothing to do; False at `Stop`."""
        block = not self._core.has_unfinished()
        while True:
            try:
                command = self._commands.get(block)
            except Empty:
                return True
            block = False
            match command:
                case Add(request):
                    try:
                        self._core.add_request(request)
                    except TamisError as error:
                        self._emit(Refused(request.request_id, ErrorInfo.of(error)))
                case Abort(request_ids):
                    deltas = self._core.abort(request_ids)
                    if deltas:
                        self._emit(Deltas(deltas))
                case GetStats(call_id):
                    self._emit(Stats(call_id, self._core.stats()))
                case Stop():
                    return False
                case Unreadable(reason):
                    raise RuntimeError(reason)


class _LoadProgress:
    """Emits each change of (stage, percent) once; ends the load when the engine was told to stop meanwhile."""

    def __init__(self, emit: Callable[[Event], None], stopping: threading.Event):
        self._emit = emit
        self._stopping = stopping
        self._last: tuple[Stage, int] | None = None

    def __call__(self, stage: Stage, percent: int) -> None:
        if self._stopping.is_set():
            raise LoadCancelled
        if (stage, percent) != self._last:
            self._last = (stage, percent)
            self._emit(Loading(stage, percent))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
