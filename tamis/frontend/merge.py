"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge_streams(streams: list[AsyncGenerator[T]]) -> AsyncGenerator[T]:
    """Items of several streams in the order in which they come.

    The first error ends all of them. Closing the generator closes every stream, and returns when they have closed.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield item
        return
    arrived: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue()

    async def forward(stream: AsyncGenerator[T]) -> None:
        end: Exception | None = None
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    arrived.put_nowait((item,))
        except Exception as error:
            end = error
        arrived.put_nowait(end)

    tasks = [asyncio.create_task(forward(stream)) for stream in streams]
    try:
        num_open = len(streams)
        while num_open:
            news = await arrived.get()
            if isinstance(news, Exception):
                raise news
            if news is None:
                num_open -= 1
            else:
                yield news[0]
    finally:
        for task in tasks:
            task.cancel()
        # Not left behind: every abort has reached the engine when this returns.
        await asyncio.gather(*tasks, return_exceptions=True)
