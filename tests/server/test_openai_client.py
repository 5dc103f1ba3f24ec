"""The official client against the server, synchronous and not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import openai
import pytest

from tamis.server.config import ServerConfig
from tests.server.harness import ANSWER, Harness, on_loopback

MESSAGES = [{"role": "user", "content": "Hello!"}]


def with_async_client(folder: Path, test: Callable[[Harness, openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        async with on_loopback(folder, ServerConfig(api_key=("secret",))) as server:
            url = f"{server.http.base_url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="secret", max_retries=0) as client:
                await test(server, client)

    asyncio.run(run())


def with_sync_client(folder: Path, test: Callable[[openai.OpenAI], None]) -> None:
    async def run() -> None:
        async with on_loopback(folder) as server:
            with openai.OpenAI(base_url=f"{server.http.base_url}/v1", api_key="none", max_retries=0) as client:
                await asyncio.to_thread(test, client)

    asyncio.run(run())


def test_chat_async(folder: Path) -> None:
    async def test(server: Harness, client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="nano", messages=MESSAGES, logprobs=True, top_logprobs=2, seed=1, extra_body={"top_k": 5}
        )
        assert answer.choices[0].message.content == ANSWER
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].logprobs.content[0].token == ANSWER[0]
        assert answer.usage.completion_tokens == len(ANSWER.encode()) + 1
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        assert server.engine.seen[0].sampling.top_k == 5

    with_async_client(folder, test)


def test_chat_stream_async(folder: Path) -> None:
    async def test(server: Harness, client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="nano", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        text = ""
        async for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == ANSWER
        assert chunk.usage.completion_tokens == len(ANSWER.encode()) + 1

    with_async_client(folder, test)


def test_closing_a_stream_frees_the_request_async(folder: Path) -> None:
    async def test(server: Harness, client: openai.AsyncOpenAI) -> None:
        server.engine.gate.clear()
        server.engine.free_tokens = 2
        stream = await client.chat.completions.create(model="nano", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await server.engine.until_live(0)

    with_async_client(folder, test)


def test_completions_async(folder: Path) -> None:
    async def test(server: Harness, client: openai.AsyncOpenAI) -> None:
        answer = await client.completions.create(model="nano", prompt=["a", "b"], max_tokens=4, logprobs=1)
        assert [choice.text for choice in answer.choices] == [ANSWER[:4]] * 2
        assert answer.choices[0].logprobs.tokens == list(ANSWER[:4])
        stream = await client.completions.create(model="nano", prompt=[1, 2, 3], max_tokens=4, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == ANSWER[:4]

    with_async_client(folder, test)


def test_engine_death_inside_a_stream_raises_async(folder: Path) -> None:
    async def test(server: Harness, client: openai.AsyncOpenAI) -> None:
        server.engine.gate.clear()
        server.engine.free_tokens = 2
        stream = await client.chat.completions.create(model="nano", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="killed"):
            async for _ in stream:
                server.engine.die("killed")

    with_async_client(folder, test)


def test_wrong_key_async(folder: Path) -> None:
    async def test(server: Harness, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError, match="not one of"):
            await client.with_options(api_key="wrong").models.list()

    with_async_client(folder, test)


def test_everything_sync(folder: Path) -> None:
    def test(client: openai.OpenAI) -> None:
        assert client.models.list().data[0].id == "nano"
        assert client.models.retrieve("nano").id == "nano"
        answer = client.chat.completions.create(model="nano", messages=MESSAGES)
        assert answer.choices[0].message.content == ANSWER
        again = client.chat.completions.create(
            model="nano", messages=[*MESSAGES, answer.choices[0].message, {"role": "user", "content": "More"}]
        )
        assert again.choices[0].message.content == ANSWER
        stream = client.chat.completions.create(model="nano", messages=MESSAGES, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER
        assert client.completions.create(model="nano", prompt="x", max_tokens=3).choices[0].text == ANSWER[:3]

    with_sync_client(folder, test)


def test_errors_are_the_clients_exceptions_sync(folder: Path) -> None:
    def test(client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="nano", messages=MESSAGES, temperature=-1)
        assert bad.value.param == "temperature"
        assert bad.value.code == "invalid_value"
        with pytest.raises(openai.NotFoundError, match="gpt-4"):
            client.chat.completions.create(model="gpt-4", messages=MESSAGES)

    with_sync_client(folder, test)
