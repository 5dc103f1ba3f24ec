"""Server-sent events: framing, pings while nothing comes, errors inside a stream, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tamis.errors import TamisError
from tamis.server.disconnect import until_gone
from tamis.server.errors import internal_error

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
# Until then an error can still be answered with its own status; later the client should see that work has begun.
HEADERS_AFTER_S = 1.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Tells nginx to pass each event on at once.
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """Streams `events`, each a JSON object, then `[DONE]`.

    An error before the headers have left is raised, so that it is answered with its status. A later one becomes an
    event with an error object and ends the stream without `[DONE]`, which thus means "complete". When the client
    goes away `events` is closed at once.
    """

    def __init__(self, events: AsyncGenerator[dict[str, Any]], *, ping_interval_s: float):
        super().__init__()
        self._events = events
        self._ping_interval_s = ping_interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream to its end.

        Raises:
            TamisError: an error before the headers.
            ClientGone: the client went away.
        """
        await until_gone(receive, self._run(_Writer(send)))

    async def _run(self, writer: _Writer) -> None:
        try:
            await self._write_events(writer)
        except Exception as error:
            if not writer.started:
                raise
            if not isinstance(error, TamisError):
                error = internal_error(error, "an event stream")
            await writer.write(frame(error.to_openai()))
        await writer.finish()

    async def _write_events(self, writer: _Writer) -> None:
        pinger = asyncio.create_task(self._ping(writer))
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    await writer.write(frame(event))
            await writer.write(DONE)
        finally:
            # Ended before an error is looked at: whether the headers have left must not change under way.
            pinger.cancel()
            await asyncio.gather(pinger, return_exceptions=True)

    async def _ping(self, writer: _Writer) -> None:
        await asyncio.sleep(min(HEADERS_AFTER_S, self._ping_interval_s))
        await writer.write(b"")
        while True:
            num_writes = writer.num_writes
            await asyncio.sleep(self._ping_interval_s)
            if writer.num_writes == num_writes:
                await writer.write(PING)


def frame(event: dict[str, Any]) -> bytes:
    """One event: JSON holds no raw line break, so one data line is enough."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


class _Writer:
    """Sends the headers before the first byte; the lock keeps pings and events apart."""

    def __init__(self, send: Send):
        self.started = False
        self.num_writes = 0
        self._send = send
        self._lock = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        async with self._lock:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
                self.started = True
            self.num_writes += 1
            if data:
                await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        async with self._lock:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
