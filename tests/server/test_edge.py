"""Around the API: keys, request ids, health, models, version, metrics, access log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tamis.engine.client import Health
from tamis.server.config import ServerConfig
from tamis.version import __version__
from tests.server.harness import ANSWER, Harness, assert_error, in_process


def with_server(folder: Path, test: Callable[[Harness], Awaitable[None]], config: ServerConfig | None = None) -> None:
    async def run() -> None:
        async with in_process(folder, config) as server:
            await test(server)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Basic c2VjcmV0", "missing_api_key"),
        ("Bearer wrong", "invalid_api_key"),
        ("Bearer secret2x", "invalid_api_key"),
        ("Bearer s\u00e9cret", "invalid_api_key"),
    ],
    ids=["none", "no-token", "basic", "wrong", "longer", "not-ascii"],
)
def test_a_wrong_key_is_401(folder: Path, header: str | None, code: str) -> None:
    async def test(server: Harness) -> None:
        headers = {"authorization": header.encode()} if header else {}
        response = await server.http.get("/v1/models", headers=headers)
        assert assert_error(response, 401)["code"] == code
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]

    with_server(folder, test, ServerConfig(api_key=("secret1", "secret2")))


@pytest.mark.parametrize("key", ["secret1", "secret2"])
def test_any_of_the_keys_opens(folder: Path, key: str) -> None:
    async def test(server: Harness) -> None:
        response = await server.http.get("/v1/models", headers={"authorization": f"bearer {key}"})
        assert response.status_code == 200

    with_server(folder, test, ServerConfig(api_key=("secret1", "secret2")))


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metrics"])
def test_operators_need_no_key(folder: Path, path: str) -> None:
    async def test(server: Harness) -> None:
        assert (await server.http.get(path)).status_code == 200

    with_server(folder, test, ServerConfig(api_key=("secret",)))


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ("abc-1.2:3_Z", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("a b", False),
        ("a;b\tc", False),
        ("", False),
    ],
)
def test_request_id_is_echoed_when_it_is_clean(folder: Path, sent: str, echoed: bool) -> None:
    async def test(server: Harness) -> None:
        response = await server.http.get("/health", headers={"x-request-id": sent})
        returned = response.headers["x-request-id"]
        assert (returned == sent) is echoed
        assert returned

    with_server(folder, test)


@pytest.mark.parametrize(
    ("health", "status", "body"),
    [
        (Health(stage="ready", percent=100), 200, {"status": "ok", "stage": "ready", "percent": 100}),
        (Health(stage="loading", percent=42), 503, {"status": "loading", "stage": "loading", "percent": 42}),
        (Health(), 503, {"status": "loading", "stage": "starting", "percent": 0}),
        (
            Health(stage="dead", reason="killed by signal 9"),
            503,
            {"status": "dead", "stage": "dead", "percent": 0, "reason": "killed by signal 9"},
        ),
    ],
    ids=["ready", "loading", "starting", "dead"],
)
def test_health_tells_the_stage(folder: Path, health: Health, status: int, body: dict[str, object]) -> None:
    async def test(server: Harness) -> None:
        server.engine.stage = health
        response = await server.http.get("/health")
        assert (response.status_code, response.json()) == (status, body)
        assert (await server.http.get("/ping")).status_code == status

    with_server(folder, test)


def test_the_api_is_503_while_loading_dead_or_draining(folder: Path) -> None:
    async def test(server: Harness) -> None:
        server.engine.stage = Health(stage="loading", percent=42)
        response = await server.chat()
        error = assert_error(response, 503)
        assert error["code"] == "loading" and "42%" in error["message"]
        assert response.headers["retry-after"]

        server.engine.stage = Health(stage="dead", reason="killed by signal 9")
        error = assert_error(await server.complete(), 503)
        assert error["code"] == "engine_dead" and "signal 9" in error["message"]

        server.engine.stage = Health(stage="ready", percent=100)
        server.service.draining = True
        response = await server.http.get("/v1/models")
        assert assert_error(response, 503)["code"] == "draining"
        assert response.headers["retry-after"]
        assert (await server.http.get("/health")).json()["status"] == "draining"

    with_server(folder, test)


def test_models_lists_the_served_one(folder: Path) -> None:
    async def test(server: Harness) -> None:
        listed = (await server.http.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert listed["data"] == [
            {
                "id": "nano",
                "object": "model",
                "created": server.service.created,
                "owned_by": "tamis",
                "root": "/models/fake",
                "max_model_len": 1024,
            }
        ]
        assert (await server.http.get("/v1/models/nano")).json() == listed["data"][0]
        error = assert_error(await server.http.get("/v1/models/org/other"), 404)
        assert error["code"] == "model_not_found" and "'org/other'" in error["message"]

    with_server(folder, test)


def test_version(folder: Path) -> None:
    async def test(server: Harness) -> None:
        assert (await server.http.get("/version")).json() == {"version": __version__}

    with_server(folder, test)


def metric(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.rsplit(" ", 1)[1])


def test_metrics_count_what_happened(folder: Path) -> None:
    async def test(server: Harness) -> None:
        await server.chat(n=2, max_tokens=4)
        await server.complete(prompt="x", stream=True, max_tokens=64)
        await server.chat(temperature=-1)
        text = (await server.http.get("/metrics")).text
        model = 'model_name="nano"'
        assert metric(text, f'vllm:request_success_total{{finished_reason="length",{model}}}') == 2
        assert metric(text, f'vllm:request_success_total{{finished_reason="stop",{model}}}') == 1
        assert metric(text, f"vllm:time_to_first_token_seconds_count{{{model}}}") == 3
        assert metric(text, f"vllm:e2e_request_latency_seconds_count{{{model}}}") == 3
        assert metric(text, f"vllm:inter_token_latency_seconds_count{{{model}}}") == 3 * 2 + len(ANSWER.encode())
        assert metric(text, f"vllm:request_queue_time_seconds_sum{{{model}}}") == 0.75
        assert metric(text, 'tamis:http_responses_total{code="200"}') == 2
        assert metric(text, 'tamis:http_responses_total{code="400"}') == 1
        assert metric(text, f"vllm:num_requests_running{{{model}}}") == 0
        assert metric(text, f"tamis:free_blocks{{{model}}}") == 100
        assert metric(text, f"tamis:leaked_blocks{{{model}}}") == 0
        assert metric(text, f"vllm:kv_cache_usage_perc{{{model}}}") == 0
        assert metric(text, f"tamis:engine_up{{{model}}}") == 1
        for name in ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens"):
            assert metric(text, f"vllm:{name}_total{{{model}}}") == 0
        assert metric(text, f"vllm:num_preemptions_total{{{model}}}") == 0

    with_server(folder, test)


def test_metrics_answer_without_an_engine(folder: Path) -> None:
    async def test(server: Harness) -> None:
        await server.http.get("/metrics")
        server.engine.stage = Health(stage="dead", reason="gone")
        assert metric((await server.http.get("/metrics")).text, 'tamis:engine_up{model_name="nano"}') == 0

    with_server(folder, test)


@pytest.mark.parametrize("enabled", [False, True], ids=["off", "on"])
def test_access_log_is_one_json_line_a_request(folder: Path, caplog: pytest.LogCaptureFixture, enabled: bool) -> None:
    async def test(server: Harness) -> None:
        await server.http.get("/nothing%0ahere", headers={"x-request-id": "me"})

    with caplog.at_level(logging.INFO, "tamis.access"):
        with_server(folder, test, ServerConfig(access_log=enabled))
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "tamis.access"]
    assert len(lines) == int(enabled)
    for line in lines:
        assert (line["method"], line["path"], line["status"]) == ("GET", "/nothing\nhere", 404)
        assert line["request_id"] == "me"
        assert line["duration_s"] >= 0


def test_a_bug_is_a_500_with_an_id_and_one_traceback(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    messages = []

    async def test(server: Harness) -> None:
        server.engine.broken = ValueError("secret detail")
        messages.append(assert_error(await server.chat(), 500)["message"])
        server.engine.broken = None
        assert (await server.chat()).status_code == 200

    with_server(folder, test)
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert isinstance(record.args, tuple) and str(record.args[0]) in messages[0]
    assert "secret" not in messages[0]
