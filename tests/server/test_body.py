"""A body that never ends is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from tamis.errors import RequestTimeoutError
from tamis.server import body


def test_a_body_that_stops_halfway_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_IDLE_S", 0.05)
    arrived: list[dict[str, Any]] = [{"type": "http.request", "body": b'{"model": "na', "more_body": True}]

    async def receive() -> dict[str, Any]:
        if arrived:
            return arrived.pop()
        await asyncio.Event().wait()
        raise AssertionError("nothing more ever comes")

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(RequestTimeoutError, match="stopped after 13 bytes") as caught:
        asyncio.run(body.read_json_object(Request(scope, receive), 1000))
    assert caught.value.status == 408


def test_a_slow_body_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_IDLE_S", 5.0)
    parts = [b'{"a', b'": ', b"1}"]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    assert asyncio.run(body.read_json_object(Request(scope, receive), 1000)) == {"a": 1}
