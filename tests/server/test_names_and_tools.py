"""What a chat request may say beside text: names, tools, and what no template or parser would look at."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tamis.frontend.async_frontend import AsyncFrontend
from tamis.frontend.template import ChatTemplate
from tests.server.harness import Harness, assert_error, in_process

USER = {"role": "user", "content": "Hi"}
SHOWS_USER_NAMES = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.name or 'someone' }}: {% endif %}{{ m.content }}\n"
    "{% endfor %}"
)
NEEDS_NAMES = "{% for m in messages %}{{ m.name or raise_exception('a name is missing') }}: {{ m.content }}{% endfor %}"


def use_template(server: Harness, source: str) -> None:
    assert server.service.served is not None
    frontend = server.service.served.frontend
    assert isinstance(frontend, AsyncFrontend)
    frontend.template = ChatTemplate(source, name="of the test", tokenizer=server.tokenizer)


def test_a_name_that_the_template_does_not_show_is_refused(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            error = assert_error(await server.chat(messages=[USER, USER | {"name": "Ada"}]), 400)
            assert error["param"] == "messages[1].name"
            assert error["code"] == "unsupported_parameter"
            assert "'Ada'" in error["message"] and "content" in error["message"]
            assert server.engine.seen == []

    asyncio.run(run())


def test_a_name_that_the_template_shows_reaches_the_prompt(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            use_template(server, SHOWS_USER_NAMES)
            assert (await server.chat(messages=[USER | {"name": "Ada"}])).status_code == 200
            assert server.tokenizer.decode(server.engine.seen[0].prompt_token_ids) == "Ada: Hi\n"

    asyncio.run(run())


def test_names_are_judged_role_by_role(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            use_template(server, SHOWS_USER_NAMES)
            named = [{"role": "system", "content": "Be brief.", "name": "boss"}, USER | {"name": "Ada"}]
            error = assert_error(await server.chat(messages=named), 400)
            assert error["param"] == "messages[0].name" and "'system'" in error["message"]

    asyncio.run(run())


def test_the_name_of_a_tools_result_is_a_label(folder: Path) -> None:
    call = {"type": "function", "function": {"name": "ping", "arguments": "{}"}}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "pong"}]

    async def run() -> None:
        async with in_process(folder) as server:
            assert (await server.chat(messages=messages)).status_code == 200
            named = [*messages[:2], messages[2] | {"name": "ping"}]
            assert (await server.chat(messages=named)).status_code == 200
            first, second = (request.prompt_token_ids for request in server.engine.seen)
            assert first == second

    asyncio.run(run())


def test_a_template_may_insist_on_names(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            use_template(server, NEEDS_NAMES)
            assert (await server.chat(messages=[USER | {"name": "Ada"}])).status_code == 200
            assert "a name is missing" in assert_error(await server.chat(messages=[USER]), 400)["message"]

    asyncio.run(run())


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parallel_tool_calls": False}, ["parallel_tool_calls is False", "not parsed"]),
        ({"tools": [tool() | {"cache_control": {}}]}, ["tools[0].cache_control"]),
        ({"tools": [tool(), tool(descripton="x")]}, ["tools[1].function.descripton", "description?"]),
        ({"tools": [tool(strict=True)]}, ["tools[0].function.strict is True", "Structured output"]),
        ({"tools": [tool(parameters="{}")]}, ["tools[0].function.parameters is '{}'", "an object"]),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, ["tools[0].function.name is empty"]),
    ],
    ids=["parallel_tool_calls", "unknown-key", "misspelled-key", "strict", "parameters-text", "no-name"],
)
def test_what_would_have_no_effect_is_refused(folder: Path, fields: dict[str, Any], words: list[str]) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            message = assert_error(await server.chat(**fields), 400)["message"]
            for word in words:
                assert word in message

    asyncio.run(run())


def test_a_tool_reaches_the_prompt_as_it_was_sent_without_empty_fields(folder: Path) -> None:
    sent = {"parameters": {"type": "object"}, "name": "f", "description": None, "strict": False}

    async def run() -> None:
        async with in_process(folder) as server:
            tools = [{"function": sent, "type": "function"}]
            response = await server.chat(tools=tools, parallel_tool_calls=True)
            assert response.status_code == 200, response.text
            prompt = server.tokenizer.decode(server.engine.seen[0].prompt_token_ids)
            assert '<tool>{"parameters": {"type": "object"}, "name": "f"}</tool>' in prompt

    asyncio.run(run())


def test_labels_of_calls_are_taken_without_effect(folder: Path) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    labelled = call | {"id": "call_1", "index": 0, "type": "function"}

    async def prompt(server: Harness, call: dict[str, Any], **labels: Any) -> list[int]:
        result = {"role": "tool", "content": "5", **labels}
        messages = [USER, {"role": "assistant", "tool_calls": [call]}, result]
        assert (await server.chat(messages=messages)).status_code == 200
        return server.engine.seen[-1].prompt_token_ids

    async def run() -> None:
        async with in_process(folder) as server:
            assert await prompt(server, call) == await prompt(server, labelled, tool_call_id="call_1")

    asyncio.run(run())
