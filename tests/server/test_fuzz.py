"""Whatever JSON comes: 200 or a 4xx error object, never a 5xx, and nothing stays behind in the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.server.openai.protocol import CHAT_REFUSED, COMPLETION_REFUSED, ChatRequest, CompletionRequest
from tests.server.harness import ANSWER, CHAT, COMPLETION, Harness, assert_error, in_process

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
ROLES = st.sampled_from(["root", "system", "developer", "user", "assistant", "tool"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES | VALUES},
        optional={
            "content": TEXT | VALUES,
            "tool_calls": st.lists(st.fixed_dictionaries({"function": VALUES}), max_size=2) | VALUES,
            "reasoning_content": TEXT | VALUES,
        },
    ),
    max_size=4,
)


def bodies(base: dict[str, Any], names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """A good body with a few fields overwritten by anything."""
    fields = st.dictionaries(st.sampled_from(names) | TEXT, VALUES, max_size=3)
    return fields.map(lambda changed: base | changed)


CHAT_BODIES = bodies(CHAT, [*ChatRequest.__struct_fields__, *CHAT_REFUSED])
COMPLETION_BODIES = bodies(COMPLETION, [*CompletionRequest.__struct_fields__, *COMPLETION_REFUSED])


@pytest.fixture(scope="module")
def ask(folder: Path) -> Iterator[Any]:
    """Posts a body to one server for the whole module, and checks the outcome."""
    with asyncio.Runner() as runner:
        context = in_process(folder)
        server: Harness = runner.run(context.__aenter__())

        def post(path: str, body: Any) -> None:
            response = runner.run(server.http.post(path, json=body))
            if response.status_code != 200:
                assert 400 <= response.status_code < 500, response.text
                assert_error(response, response.status_code)
            assert not server.engine.live

        yield post
        assert runner.run(server.chat()).json()["choices"][0]["message"]["content"] == ANSWER
        runner.run(context.__aexit__(None, None, None))


@settings(max_examples=80)
@given(body=CHAT_BODIES)
def test_chat_fields(ask: Any, body: dict[str, Any]) -> None:
    ask("/v1/chat/completions", body)


@settings(max_examples=60)
@given(body=COMPLETION_BODIES)
def test_completion_fields(ask: Any, body: dict[str, Any]) -> None:
    ask("/v1/completions", body)


@settings(max_examples=80)
@given(messages=MESSAGES)
def test_messages(ask: Any, messages: Any) -> None:
    ask("/v1/chat/completions", CHAT | {"messages": messages, "max_tokens": 2})


@settings(max_examples=40)
@given(body=VALUES)
def test_any_json(ask: Any, body: Any) -> None:
    ask("/v1/completions", body)
