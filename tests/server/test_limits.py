"""Limits over all answers of a request, in the words of what the client sent."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import assert_error, in_process


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 17}, "17 x the rest of the context, "),
        ({"n": 17, "max_tokens": 500}, "17 x max_tokens 500)"),
    ],
    ids=["left-out", "sent"],
)
def test_too_many_tokens_in_all_are_told_by_what_was_asked(folder: Path, fields: dict[str, Any], words: str) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            message = assert_error(await server.chat(**fields), 400)["message"]
            assert f"1 prompts x n {words}" in message
            assert ("max_tokens 5" in message) is ("max_tokens" in fields)

    asyncio.run(run())


def test_too_many_tokens_by_an_endpoint_s_default_are_told_so(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            assert server.service.served is not None
            server.service.served = dataclasses.replace(server.service.served, max_request_tokens=40)
            message = assert_error(await server.complete(n=3, max_tokens=None), 400)["message"]
            assert "up to 48 tokens (1 prompts x n 3 x the default of 16)" in message

    asyncio.run(run())
