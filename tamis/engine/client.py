"""How everything above the engine talks to it: five methods, the same in one process or two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, RequestDelta

Stage = Literal["starting", "loading", "warming_up", "ready", "draining", "dead"]


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """Where the engine stands.

    Attributes:
        stage: "ready" is the only one that serves.
        percent: of the stage, while loading.
        reason: why it is dead, one sentence.
    """

    stage: Stage = "starting"
    percent: int = 0
    reason: str | None = None


class EngineClient(Protocol):
    """An engine, wherever it runs. All methods belong to one asyncio loop."""

    def health(self) -> Health:
        """The current stage; never blocks."""
        ...

    async def ready(self) -> EngineInfo:
        """Wait until loaded. Raises the load error (a `TamisError`) or `EngineDeadError`."""
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[RequestDelta]:
        """Stream a request's deltas. Leaving the iterator early (aclose, cancellation) aborts the request.

        Raises `OverloadedError` when the queue is full and `EngineDeadError` when the engine dies underneath.
        """
        ...

    async def stats(self) -> EngineStats:
        """A snapshot, at most one step old."""
        ...

    async def shutdown(self) -> None:
        """Stop taking requests, abort running ones, end. Who wants to drain first waits before calling it."""
        ...
