"""A real server on loopback: when bytes leave, and what happens when a client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tamis.server.config import ServerConfig
from tests.server.harness import ANSWER, CHAT, COMPLETION, Harness, assert_error, on_loopback, sse_events

TIMEOUT_S = 10


def with_server(folder: Path, test: Callable[[Harness], Awaitable[None]], config: ServerConfig | None = None) -> None:
    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S), on_loopback(folder, config) as server:
            await test(server)

    asyncio.run(run())


ENDPOINTS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION | {"max_tokens": 20})]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS, ids=["chat", "completions"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("free_tokens", [0, 3], ids=["before-first-token", "under-way"])
def test_a_client_that_goes_away_frees_its_request(
    folder: Path, path: str, body: dict[str, Any], is_stream: bool, free_tokens: int
) -> None:
    async def test(server: Harness) -> None:
        server.engine.gate.clear()
        server.engine.free_tokens = free_tokens
        request = asyncio.create_task(server.http.post(path, json=body | {"n": 2, "stream": is_stream}))
        await server.engine.until_live(2)
        request.cancel()
        # The gate stays closed: the engine makes no step that could be waited for.
        await server.engine.until_live(0)
        assert len(server.engine.aborted) == 2
        server.engine.gate.set()
        assert (await server.chat()).status_code == 200

    with_server(folder, test)


def test_a_client_that_goes_away_with_several_prompts_frees_all(folder: Path) -> None:
    async def test(server: Harness) -> None:
        server.engine.gate.clear()
        request = asyncio.create_task(server.complete(prompt=["a", "b", "c"], n=2))
        await server.engine.until_live(6)
        request.cancel()
        await server.engine.until_live(0)
        assert len(server.engine.aborted) == 6

    with_server(folder, test)


def test_the_first_token_leaves_at_once(folder: Path) -> None:
    async def test(server: Harness) -> None:
        server.engine.gate.clear()
        server.engine.free_tokens = 1
        async with server.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if ANSWER[0] in "".join(e["choices"][0]["delta"].get("content", "") for e in sse_events(text)):
                    break
            assert sse_events(text)[0]["choices"][0]["delta"]["role"] == "assistant"
            assert len(server.engine.live) == 1

    with_server(folder, test)


def test_pings_while_the_first_token_is_awaited(folder: Path) -> None:
    async def test(server: Harness) -> None:
        server.engine.gate.clear()
        async with server.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if text.count(": ping\n\n") == 2:
                    server.engine.gate.set()
            events = sse_events(text)
            assert text.startswith(": ping\n\n")
            assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == ANSWER
            assert events[-1] == "[DONE]"

    with_server(folder, test, ServerConfig(port=0, ping_interval_s=0.02))


def test_engine_death_ends_open_requests_with_an_error(folder: Path) -> None:
    async def test(server: Harness) -> None:
        server.engine.gate.clear()
        server.engine.free_tokens = 2
        whole = asyncio.create_task(server.chat())
        await server.engine.until_live(1)
        async with server.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if server.engine.stage.stage == "ready":
                    server.engine.die("killed by signal 9")
            events = sse_events(text)
        assert events[-1]["error"]["code"] == "engine_dead"
        assert "signal 9" in events[-1]["error"]["message"]
        assert assert_error(await whole, 503)["code"] == "engine_dead"
        assert (await server.http.get("/health")).json()["reason"] == "killed by signal 9"

    with_server(folder, test)


def test_a_bug_inside_a_stream_is_an_error_event(folder: Path) -> None:
    async def test(server: Harness) -> None:
        server.engine.gate.clear()
        server.engine.free_tokens = 1
        async with server.http.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                server.engine.broken = ValueError("secret detail")
                server.engine.gate.set()
        events = sse_events(text)
        assert events[-1]["error"]["code"] == "internal_error"
        assert "secret" not in text

    with_server(folder, test)


def test_ten_megabytes_are_413_and_the_answer_arrives(folder: Path) -> None:
    async def test(server: Harness) -> None:
        response = await server.http.post(
            "/v1/completions", content=b"x" * 10_000_000, headers={"content-type": "application/json"}
        )
        assert "8388608" in assert_error(response, 413)["message"]
        assert (await server.chat()).status_code == 200

    with_server(folder, test)


def test_an_announced_large_body_is_refused_before_it_is_sent(folder: Path) -> None:
    async def test(server: Harness) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http.base_url.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 900000000\r\n\r\n{"
        )
        status = await reader.readline()
        assert b"413" in status
        writer.close()

    with_server(folder, test)


@pytest.mark.parametrize("sent", [b"", b'{"prompt": "x'], ids=["no-body", "half-a-body"])
def test_a_client_that_goes_away_inside_its_body_is_forgotten(folder: Path, sent: bytes) -> None:
    async def test(server: Harness) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.http.base_url.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n" + sent
        )
        await writer.drain()
        while server.service.num_in_flight == 0:
            await asyncio.sleep(0)
        writer.close()
        assert await server.service.wait_idle(TIMEOUT_S)
        assert (await server.chat()).status_code == 200

    with_server(folder, test)


GARBAGE = {
    "no-http": b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
    "negative-length": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "no-host": b"GET /health HTTP/1.1\r\n\r\n",
    "bad-chunk": (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    ),
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_instead_of_http_is_answered_with_an_error_object(folder: Path, sent: bytes) -> None:
    async def test(server: Harness) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http.base_url.port)
        writer.write(sent)
        head, body = (await reader.read()).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "invalid_http"
        writer.close()
        assert (await server.chat()).status_code == 200

    with_server(folder, test)


def test_garbage_under_an_answer_ends_the_connection_and_is_no_failure(folder: Path) -> None:
    async def test(server: Harness) -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.http.base_url.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        )
        assert b"413" in await reader.readline()
        writer.write(b"zz\r\n")
        assert (await reader.read()).endswith(b"}")
        writer.close()
        assert failures == []
        assert (await server.chat()).status_code == 200

    with_server(folder, test, ServerConfig(port=0, max_body_bytes=100_000))
