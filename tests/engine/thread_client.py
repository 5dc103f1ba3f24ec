"""The smallest transport there is under an `EventClient`: a queue to a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue

from tamis.config import EngineConfig
from tamis.engine.event_client import EventClient
from tamis.engine.loop import Load, run_engine
from tamis.engine.protocol import Command, Stop, Unreadable


class ThreadClient(EventClient):
    """`EngineClient` over a thread, which starts at once.

    Args:
        config: for the scheduler.
        load: builds the runner, on the thread; calls its argument with a stage and a percentage now and then, which
            `health` reports and where `shutdown` cuts a load short.
    """

    def __init__(self, config: EngineConfig, load: Load):
        super().__init__()
        self._commands: SimpleQueue[Command | Unreadable] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=run_engine,
            args=(config, load, self._commands, self._on_event, self._stopping),
            name="tamis-engine",
            daemon=True,
        )
        self._thread.start()

    def _send(self, command: Command) -> None:
        if isinstance(command, Stop):
            self._stopping.set()
        self._commands.put(command)

    async def _join(self) -> None:
        await asyncio.to_thread(self._thread.join)
