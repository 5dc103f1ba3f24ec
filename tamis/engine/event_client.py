"""The asyncio half of an engine client: streams, futures and health out of an engine's events.

Subclasses bring the transport: `_send` takes commands away, and some thread of theirs calls `_on_event`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future

from tamis.engine.client import Health
from tamis.engine.loop import STOPPED
from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, RequestDelta
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
)
from tamis.errors import EngineDeadError, InvalidRequestError, TamisError, UnavailableError

RETRY_AFTER_S = 5


class _Stream:
    """One open request: what came for it, and whether its reader has left."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[RequestDelta | TamisError] = asyncio.Queue()
        self.abandoned = False


class EventClient(ABC):
    """`EngineClient` over commands and events; see there for the methods' meaning."""

    def __init__(self) -> None:
        self._health = Health()
        self._info: Future[EngineInfo] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, _Stream] = {}
        self._stats_calls: dict[int, asyncio.Future[EngineStats]] = {}
        self._call_ids = itertools.count()
        self._shutting_down: asyncio.Task[None] | None = None

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Pass a command on without blocking; called on the asyncio loop. An engine that is gone is no error."""

    @abstractmethod
    async def _join(self) -> None:
        """`Stop` has been sent: wait for the engine's end and clean up behind it, by force if need be."""

    def health(self) -> Health:
        """The current stage; never blocks."""
        return self._health

    async def ready(self) -> EngineInfo:
        """Wait until loaded. Raises the load error (a `TamisError`) or `EngineDeadError`."""
        self._loop = asyncio.get_running_loop()
        info = asyncio.wrap_future(self._info)
        # Looked at here too: asyncio complains of an error that a caller who gave up will never see.
        info.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: a caller that gives up must not cancel the future for all others.
        return await asyncio.shield(info)

    async def generate(self, request: EngineRequest) -> AsyncIterator[RequestDelta]:
        """Stream a request's deltas; what the engine refuses is raised before the first one."""
        self._check_serving()
        request_id = request.request_id
        if request_id in self._streams:
            raise InvalidRequestError(f"request_id {request_id!r} is already running.", param="request_id")
        stream = self._streams[request_id] = _Stream()
        try:
            self._send(Add(request))
        except BaseException:
            # The engine has never heard of it and will say no last word.
            del self._streams[request_id]
            raise
        ended = False
        try:
            while not ended:
                item = await stream.queue.get()
                if isinstance(item, TamisError):
                    ended = True
                    raise item
                ended = item.finish_reason is not None
                yield item
        finally:
            if not ended and self._streams.get(request_id) is stream:
                # The id stays taken until the engine has said its last word, which a new request must not hear.
                stream.abandoned = True
                self._send(Abort([request_id]))

    async def stats(self) -> EngineStats:
        """A snapshot, at most one step old. Raises `UnavailableError` while loading, `EngineDeadError` after."""
        self._check_loaded()
        call_id = next(self._call_ids)
        answer = asyncio.get_running_loop().create_future()
        self._stats_calls[call_id] = answer
        try:
            self._send(GetStats(call_id))
            return await answer
        finally:
            self._stats_calls.pop(call_id, None)

    async def shutdown(self) -> None:
        """Stop taking requests, abort running ones, end. Idempotent."""
        self._loop = asyncio.get_running_loop()
        if self._shutting_down is None:
            self._shutting_down = self._loop.create_task(self._shut_down())
        await asyncio.shield(self._shutting_down)

    async def _shut_down(self) -> None:
        if self._health.stage != "dead":
            self._health = Health(stage="draining")
            self._send(Stop())
        await self._join()
        self._die(STOPPED)

    def _check_loaded(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._health.stage == "dead":
            raise EngineDeadError(self._health.reason or STOPPED)
        if not self._info.done():
            raise UnavailableError("The model is still being loaded.", retry_after_s=RETRY_AFTER_S)

    def _check_serving(self) -> None:
        self._check_loaded()
        if self._health.stage == "draining":
            raise UnavailableError("The server is shutting down.", retry_after_s=RETRY_AFTER_S)

    # Events, on the transport's thread.

    def _on_event(self, event: Event) -> None:
        match event:
            case Loading(stage, percent):
                if self._health.stage not in ("draining", "dead"):
                    self._health = Health(stage=stage, percent=percent)
            case Loaded(info):
                if self._health.stage not in ("draining", "dead"):
                    self._health = Health(stage="ready", percent=100)
                self._info.set_result(info)
            case LoadFailed(error):
                self._health = Health(stage="dead", reason=error.message)
                self._info.set_exception(error.to_error())
            case Died(reason):
                self._on_death(reason)
            case _:
                self._call_soon(self._deliver, event)

    def _on_death(self, reason: str) -> None:
        """The engine is gone. The first reason counts, save that a death while shutting down is not news."""
        if self._health.stage != "dead":
            self._health = Health(stage="dead", reason=reason)
        if not self._info.done():
            self._info.set_exception(EngineDeadError(reason))
        self._call_soon(self._die, reason)

    def _call_soon(self, callback: Callable[..., None], *args: object) -> None:
        loop = self._loop
        if loop is not None:
            # A loop that is closed has no readers left.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(callback, *args)

    # Events, on the asyncio loop.

    def _deliver(self, event: Deltas | Refused | Stats) -> None:
        match event:
            case Deltas(deltas):
                for delta in deltas:
                    self._put(delta.request_id, delta, last=delta.finish_reason is not None)
            case Refused(request_id, error):
                self._put(request_id, error.to_error(), last=True)
            case Stats(call_id, stats):
                answer = self._stats_calls.pop(call_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(stats)

    def _put(self, request_id: str, item: RequestDelta | TamisError, *, last: bool) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        if not stream.abandoned:
            stream.queue.put_nowait(item)
        if last:
            del self._streams[request_id]

    def _die(self, reason: str) -> None:
        if self._health.stage != "dead":
            self._health = Health(stage="dead", reason=reason)
        for request_id in list(self._streams):
            self._put(request_id, EngineDeadError(reason), last=True)
        for answer in self._stats_calls.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(reason))
        self._stats_calls.clear()
