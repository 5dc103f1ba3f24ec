"""Requests that nobody should send: each gets a 4xx with an OpenAI error object, and the next request works."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis.server.config import ServerConfig
from tests.server.harness import ANSWER, CHAT, Harness, assert_error, in_process

USER = {"role": "user", "content": "Hi"}
DEEP = '{"a":' * 400 + "1" + "}" * 400


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [fields]}


CHAT_CASES: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    # ranges: value, limit
    "temperature-negative": ({"temperature": -1}, 400, ["temperature", "-1", "0 to 2"]),
    "temperature-over-2": ({"temperature": 2.5}, 400, ["temperature", "2.5", "0 to 2"]),
    "top_p-zero": ({"top_p": 0}, 400, ["top_p", "0", "at most 1"]),
    "top_k-minus-2": ({"top_k": -2}, 400, ["top_k", "-2"]),
    "min_p-over-1": ({"min_p": 1.5}, 400, ["min_p", "1.5", "0 to 1"]),
    "presence_penalty-3": ({"presence_penalty": 3}, 400, ["presence_penalty", "3", "-2 to 2"]),
    "repetition_penalty-0": ({"repetition_penalty": 0}, 400, ["repetition_penalty", "0"]),
    "n-zero": ({"n": 0}, 400, ["n is 0", "from 1 to 128"]),
    "n-huge": ({"n": 1000}, 400, ["n is 1000", "from 1 to 128"]),
    "max_tokens-zero": ({"max_tokens": 0}, 400, ["max_tokens is 0", "at least 1"]),
    "max_tokens-over-context": ({"max_tokens": 2000}, 400, ["2000", "1024", "Lower max_tokens"]),
    "n-times-max_tokens": ({"n": 100, "max_tokens": 500}, 400, ["50000", "4096", "Lower n"]),
    "n-times-context": ({"n": 100}, 400, ["n 100", "4096", "Lower n"]),
    "min_tokens-over-max": ({"min_tokens": 9, "max_tokens": 3}, 400, ["min_tokens", "9", "3"]),
    "stop-17": ({"stop": ["x"] * 17}, 400, ["stop", "17", "at most 16"]),
    "stop-empty-string": ({"stop": [""]}, 400, ["stop", "non-empty"]),
    "top_logprobs-21": ({"logprobs": True, "top_logprobs": 21}, 400, ["top_logprobs is 21", "0 to 20"]),
    "top_logprobs-without": ({"top_logprobs": 2}, 400, ["top_logprobs is 2", "logprobs"]),
    "logit_bias-over-100": ({"logit_bias": {"5": 101}}, 400, ["logit_bias[5]", "101", "-100 to 100"]),
    "logit_bias-not-an-id": ({"logit_bias": {"x": 1}}, 400, ["logit_bias", "'x'", "token ids"]),
    "logit_bias-id-in-two-spellings": ({"logit_bias": {"5": 1, "05": 2}}, 400, ["logit_bias", "'05'", "token ids"]),
    "logit_bias-outside": ({"logit_bias": {"9999": 1}}, 400, ["logit_bias", "9999"]),
    "stop_token_ids-outside": ({"stop_token_ids": [9999]}, 400, ["stop_token_ids", "9999"]),
    "seed-65-bits": ({"seed": 2**64 - 1}, 400, ["seed", "64-bit"]),
    "top_k-65-bits": ({"top_k": 2**63}, 400, ["top_k", "64-bit"]),
    "prompt-over-context": (message(role="user", content="x" * 5000), 400, ["50", "1024", "Shorten"]),
    "max_tokens-twice": ({"max_tokens": 3, "max_completion_tokens": 4}, 400, ["max_tokens is 3", "4"]),
    # types
    "temperature-string": ({"temperature": "hot"}, 400, ["temperature is 'hot'", "a number"]),
    "temperature-bool": ({"temperature": True}, 400, ["temperature is True", "a number"]),
    "max_tokens-string": ({"max_tokens": "5"}, 400, ["max_tokens is '5'", "an integer"]),
    "max_tokens-float": ({"max_tokens": 5.5}, 400, ["max_tokens is 5.5", "an integer"]),
    "n-bool": ({"n": True}, 400, ["n is True", "an integer"]),
    "stream-string": ({"stream": "yes"}, 400, ["stream is 'yes'", "true or false"]),
    "stop-number": ({"stop": 5}, 400, ["stop is 5", "a string or an array of strings"]),
    "stop-mixed": ({"stop": ["a", 5]}, 400, ["stop", "stop[1]"]),
    "logit_bias-list": ({"logit_bias": [1]}, 400, ["logit_bias", "an object of numbers"]),
    "metadata-string": ({"metadata": "x"}, 400, ["metadata is 'x'", "an object"]),
    "model-number": ({"model": 5}, 400, ["model is 5", "a string"]),
    # names
    "model-unknown": ({"model": "gpt-4"}, 404, ["'gpt-4'", "'nano'"]),
    "unknown-near": ({"temprature": 1}, 400, ["'temprature'", "Did you mean temperature?"]),
    "unknown-far": ({"qqqqqq": 1}, 400, ["'qqqqqq'", "Leave it out"]),
    # known and not honoured
    "response_format-json": ({"response_format": {"type": "json_object"}}, 400, ["response_format", "json_object"]),
    "tool_choice-auto": ({"tool_choice": "auto"}, 400, ["tool_choice is 'auto'", "none"]),
    "tool_choice-named": ({"tool_choice": {"type": "function"}}, 400, ["tool_choice", "function"]),
    "best_of-2": ({"best_of": 2}, 400, ["best_of is 2", "Use n"]),
    "audio": ({"audio": {"voice": "x"}}, 400, ["audio", "text"]),
    "modalities-audio": ({"modalities": ["text", "audio"]}, 400, ["modalities", "audio"]),
    "functions": ({"functions": [{"name": "f"}]}, 400, ["functions", "Use tools"]),
    "prompt_logprobs": ({"prompt_logprobs": 1}, 400, ["prompt_logprobs is 1", "logprobs"]),
    "chat_template": ({"chat_template": "{{ 1 }}"}, 400, ["chat_template", "chat_template_kwargs"]),
    "store-true": ({"store": True}, 400, ["store is True"]),
    "best_of-true-is-not-1": ({"best_of": True}, 400, ["best_of is True"]),
    "stream_options-without-stream": ({"stream_options": {}}, 400, ["stream_options", "stream"]),
    "stream_options-unknown": ({"stream": True, "stream_options": {"usage": True}}, 400, ["stream_options.usage"]),
    "template-kwargs-unknown": ({"chat_template_kwargs": {"thinking_mod": "x"}}, 400, ["thinking_mod"]),
    "template-kwargs-bad-mode": ({"chat_template_kwargs": {"thinking_mode": "x"}}, 400, ["thinking_mode", "enabled"]),
    "template-kwargs-messages": ({"chat_template_kwargs": {"messages": []}}, 400, ["'messages'"]),
    # messages
    "messages-empty": ({"messages": []}, 400, ["messages is empty", "at least one"]),
    "messages-null": ({"messages": None}, 400, ["messages is missing"]),
    "messages-string": ({"messages": "Hi"}, 400, ["messages is 'Hi'", "an array of values"]),
    "message-string": ({"messages": ["Hi"]}, 400, ["messages[0] is 'Hi'", "an object"]),
    "message-null": ({"messages": [None]}, 400, ["messages[0] is None", "an object"]),
    "role-unknown": (message(role="boss", content="x"), 400, ["messages[0].role is 'boss'", "assistant"]),
    "role-missing": (message(content="x"), 400, ["messages[0].role is missing"]),
    "role-root-later": ({"messages": [USER, {"role": "root", "content": "x"}]}, 400, ["messages[1].role is 'root'"]),
    "content-missing": (message(role="user"), 400, ["messages[0].content is missing"]),
    "content-number": (message(role="user", content=5), 400, ["messages[0].content is 5", "a string or an array"]),
    "content-image": (
        message(role="user", content=[{"type": "image_url", "image_url": {"url": "http://x"}}]),
        400,
        ["messages[0].content[0].type is 'image_url'", "text"],
    ),
    "content-part-string": (message(role="user", content=["x"]), 400, ["messages[0].content[0] is 'x'", "object"]),
    "content-part-no-text": (message(role="user", content=[{"type": "text"}]), 400, ["content[0].text is missing"]),
    "message-key-unknown": (message(role="user", content="x", contnt="y"), 400, ["contnt", "messages[0].content?"]),
    "tool_calls-of-user": (
        message(role="user", content="x", tool_calls=[{"function": {"name": "f"}}]),
        400,
        ["messages[0].tool_calls", "'user'"],
    ),
    "tool-call-arguments": (
        message(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": "{"}}]),
        400,
        ["messages[0].tool_calls[0].function.arguments", "JSON"],
    ),
    "tool-call-arguments-deep": (
        message(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": DEEP}}]),
        400,
        ["messages[0].tool_calls[0].function.arguments", "64 levels"],
    ),
    "tools-not-a-function": ({"tools": [{"type": "web"}]}, 400, ["tools[0].type is 'web'", "function"]),
    "tools-no-name": ({"tools": [{"type": "function", "function": {}}]}, 400, ["tools[0].function.name"]),
    "continue-and-open": (
        {
            "messages": [USER, {"role": "assistant", "content": "x"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        400,
        ["continue_final_message", "add_generation_prompt"],
    ),
    "continue-a-user": ({"continue_final_message": True}, 400, ["continue_final_message", "'user'"]),
}

COMPLETION_CASES: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "prompt-missing": ({"prompt": None}, 400, ["prompt is missing"]),
    "prompt-empty-string": ({"prompt": ""}, 400, ["0 tokens", "at least 1"]),
    "prompt-empty-list": ({"prompt": []}, 400, ["prompt is empty"]),
    "prompt-empty-ids": ({"prompt": [[]]}, 400, ["0 tokens", "at least 1"]),
    "prompt-number": ({"prompt": 5}, 400, ["prompt is 5", "array of integers"]),
    "prompt-mixed": ({"prompt": ["a", [1]]}, 400, ["prompt[1]", "[1]"]),
    "prompt-id-and-text": ({"prompt": [1, "a"]}, 400, ["prompt[1] is 'a'"]),
    "prompt-bool": ({"prompt": [1, True]}, 400, ["prompt[1] is True"]),
    "prompt-float-id": ({"prompt": [1.5]}, 400, ["prompt[0] is 1.5"]),
    "prompt-id-negative": ({"prompt": [-1]}, 400, ["-1", "from 0 to 262"]),
    "prompt-id-over-vocab": ({"prompt": [5, 263]}, 400, ["263", "from 0 to 262"]),
    "prompt-id-65-bits": ({"prompt": [2**64]}, 400, ["65 bits", "64"]),
    "prompt-over-context": ({"prompt": [1] * 1024}, 400, ["1024", "Shorten"]),
    "prompts-over-limit": ({"prompt": ["a"] * 1025}, 400, ["1025", "1024"]),
    "choices-over-limit": ({"prompt": ["a"] * 100, "n": 20, "max_tokens": 1}, 400, ["2000", "1024"]),
    "one-of-two-too-long": ({"prompt": [[1], [1] * 1024]}, 400, ["1024", "Shorten"]),
    "logprobs-21": ({"logprobs": 21}, 400, ["logprobs is 21", "0 to 20"]),
    "logprobs-bool": ({"logprobs": True}, 400, ["logprobs is True", "an integer"]),
    "echo-with-logprobs": ({"echo": True, "logprobs": 1}, 400, ["echo", "logprobs is 1"]),
    "suffix": ({"suffix": "x"}, 400, ["suffix is 'x'", "middle"]),
    "best_of-3": ({"best_of": 3}, 400, ["best_of is 3", "Use n"]),
    "messages": ({"messages": [USER]}, 400, ["'messages' is not a known parameter"]),
    "max_completion_tokens": ({"max_completion_tokens": 5}, 400, ["max_completion_tokens", "Use max_tokens"]),
    "guided_json": ({"guided_json": {}}, 400, ["guided_json", "not available"]),
}


class Server:
    """One server for the whole module: what it went through before must not matter."""

    def __init__(self, runner: asyncio.Runner, harness: Harness):
        self.harness = harness
        self.run = runner.run

    def refuses(self, status: int, words: list[str], path: str, **request: Any) -> None:
        """Send a request; check its error, and that a good one then works."""
        error = assert_error(self.run(self.harness.http.post(path, **request)), status)
        assert error["type"] == "invalid_request_error"
        for word in words:
            assert word in error["message"]
        good = self.run(self.harness.chat())
        assert good.json()["choices"][0]["message"]["content"] == ANSWER
        assert not self.harness.engine.live


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with asyncio.Runner() as runner:
        context = in_process(folder, ServerConfig(max_body_bytes=99_999))
        yield Server(runner, runner.run(context.__aenter__()))
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client's mistake is no event of the server's."""
    yield
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("fields", "status", "words"), CHAT_CASES.values(), ids=CHAT_CASES.keys())
def test_bad_chat_is_refused_and_the_next_works(
    server: Server, fields: dict[str, Any], status: int, words: list[str]
) -> None:
    server.refuses(status, words, "/v1/chat/completions", json={"messages": [USER]} | fields)


@pytest.mark.parametrize(("fields", "status", "words"), COMPLETION_CASES.values(), ids=COMPLETION_CASES.keys())
def test_bad_completion_is_refused_and_the_next_works(
    server: Server, fields: dict[str, Any], status: int, words: list[str]
) -> None:
    server.refuses(status, words, "/v1/completions", json={"prompt": "Hello"} | fields)


def test_a_bad_stream_is_refused_with_a_status_too(server: Server) -> None:
    body = CHAT | {"stream": True, "temperature": -1}
    server.refuses(400, ["temperature is -1"], "/v1/chat/completions", json=body)


BODIES: dict[str, tuple[bytes, str, int, list[str]]] = {
    "empty": (b"", "application/json", 400, ["empty"]),
    "not-json": (b"hello", "application/json", 400, ["not valid JSON", "byte 0"]),
    "trailing-comma": (b'{"a": 1,}', "application/json", 400, ["not valid JSON", "byte 8"]),
    "cut": (b'{"a": [1, 2', "application/json", 400, ["not valid JSON", "truncated"]),
    "two-values": (b"{} {}", "application/json", 400, ["not valid JSON", "byte 4"]),
    "array": (b"[1]", "application/json", 400, ["an array", "object"]),
    "string": (b'"x"', "application/json", 400, ["a string", "object"]),
    "null": (b"null", "application/json", 400, ["null", "object"]),
    "number": (b"7", "application/json", 400, ["a number", "object"]),
    "nan": (b'{"temperature": NaN}', "application/json", 400, ["not valid JSON", "byte 16"]),
    "infinity": (b'{"temperature": Infinity}', "application/json", 400, ["not valid JSON"]),
    "float-overflow": (b'{"temperature": 1e999}', "application/json", 400, ["out of range"]),
    "huge-int": (b'{"seed": ' + b"9" * 30 + b"}", "application/json", 400, ["100 bits", "64"]),
    "huger-int": (b'{"seed": ' + b"9" * 5000 + b"}", "application/json", 400, ["not valid JSON", "out of range"]),
    "invalid-utf8": (b'{"model": "\xff"}', "application/json", 400, ["UTF-8", "0xff", "11"]),
    "lone-surrogate": (b'{"model": "\\ud800"}', "application/json", 400, ["\\ud800", "byte 11", "surrogate pair"]),
    "low-surrogate": (b'{"a": "\\ud83d\\ude00 \\\\ud800 \\ude00"}', "application/json", 400, ["\\ude00", "byte 28"]),
    "key-twice": (b'{"temperature": -1, "temperature": 1}', "application/json", 400, ["'temperature' twice"]),
    "key-twice-inside": (b'{"a": [{"b": 1, "c": 2, "b": 1}]}', "application/json", 400, ["'b' twice"]),
    "deep-70": (b'{"a":' * 70 + b"1" + b"}" * 70, "application/json", 400, ["64 levels"]),
    "deep-90000": (b"[" * 90_000, "application/json", 400, ["64 levels"]),
    "form": (b"a=1", "application/x-www-form-urlencoded", 400, ["x-www-form-urlencoded", "application/json"]),
    "no-content-type": (b"{}", "", 400, ["''", "application/json"]),
    "latin-1": (b"{}", "application/json; charset=latin-1", 400, ["latin-1", "utf-8"]),
    "over-limit": (b'{"a": "' + b"x" * 100_000 + b'"}', "application/json", 413, ["100009", "99999", "max-body-bytes"]),
}


@pytest.mark.parametrize(("body", "content_type", "status", "words"), BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"], ids=["chat", "completions"])
def test_bad_body_is_refused_and_the_next_works(
    server: Server, path: str, body: bytes, content_type: str, status: int, words: list[str]
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    server.refuses(status, words, path, content=body, headers=headers)


def test_a_body_without_length_is_cut_at_the_limit(server: Server) -> None:
    async def much() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000

    headers = {"content-type": "application/json"}
    server.refuses(413, ["over 99999 bytes"], "/v1/completions", content=much(), headers=headers)


def test_a_compressed_body_is_refused(server: Server) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    server.refuses(400, ["'gzip'", "uncompressed"], "/v1/completions", content=b"{}", headers=headers)


def test_content_type_with_charset_is_taken(server: Server) -> None:
    response = server.run(
        server.harness.http.post(
            "/v1/chat/completions",
            content=json.dumps(CHAT),
            headers={"content-type": 'Application/JSON; charset="UTF-8"'},
        )
    )
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/gpt-4", 404),
        ("GET", "/v1/models/%0d%0a%00", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
def test_unknown_routes_and_methods_are_error_objects(server: Server, method: str, path: str, status: int) -> None:
    response = server.run(server.harness.http.request(method, path))
    assert_error(response, status)
    assert ("allow" in response.headers) is (status == 405)
