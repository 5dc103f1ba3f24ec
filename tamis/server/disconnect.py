"""Clients that go away: the work they asked for is cancelled at once, so that the engine gets its blocks back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` and return its result; the request's body must have been read.

    Raises:
        ClientGone: the client went away first. `work` has been cancelled and has ended by then.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        watcher.cancel()
        # Waits for the work's own clean-up (its abort has left) before the caller goes on.
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
