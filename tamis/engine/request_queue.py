"""Requests in the order in which they are served."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from tamis.engine.request import Request

_rank = attrgetter("rank")


class RequestQueue:
    """Requests sorted by rank, best (lowest) first. Ranks are unique, so a place is found by bisection."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._requests)

    def first(self) -> Request | None:
        """The best one, or None."""
        return self._requests[0] if self._requests else None

    def snapshot(self) -> list[Request]:
        """A copy to iterate over while the queue changes."""
        return self._requests.copy()

    def add(self, request: Request) -> None:
        """Put a request at the place of its rank."""
        insort(self._requests, request, key=_rank)

    def remove(self, request: Request) -> None:
        """Take a request out.

        Raises:
            ValueError: it is not in the queue.
        """
        index = bisect_left(self._requests, request.rank, key=_rank)
        if index == len(self._requests) or self._requests[index] is not request:
            raise ValueError(f"request {request.request_id!r} is not in this queue")
        del self._requests[index]
