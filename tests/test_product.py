"""The product as it ships: `tamis serve` and `tamis generate` with the bundled model, nothing of it replaced."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from tamis.cli.main import main
from tamis.cli.server_process import ServerProcess, serve_command

SMALL = ["--num-gpu-blocks-override", "70", "--max-model-len", "2048", "--threads", "1"]
LONG_QUESTION = "How do I add two numbers in Python? " * 60
FREED_S = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for the module; at its end it must leave with 0 after SIGTERM, and without a traceback."""
    with ServerProcess(serve_command(SMALL)) as server:
        server.wait_ready(lambda stage, percent: None, timeout_s=120)
        yield server
        log_tail = server.log_tail()
        server.stop()
        assert server.exit_code == 0
        assert "Traceback" not in log_tail


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: OpenAI, question: str) -> ChatCompletion:
    return client.chat.completions.create(
        model="nano", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=16
    )


def metrics(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {series.removesuffix('{model_name="nano"}'): float(value) for series, value in samples}


def test_a_chat_asked_twice_is_answered_alike_and_its_prefix_is_cached(client: OpenAI) -> None:
    first, second = ask(client, LONG_QUESTION), ask(client, LONG_QUESTION)
    assert first.choices[0].message.content
    assert second.choices[0].message == first.choices[0].message
    assert first.usage is not None and second.usage is not None
    assert second.usage.prompt_tokens == first.usage.prompt_tokens > 300
    assert second.usage.prompt_tokens_details is not None
    # Whole blocks, and at least one token is computed.
    assert second.usage.prompt_tokens_details.cached_tokens == (first.usage.prompt_tokens - 1) // 128 * 128


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI) -> None:
    whole = ask(client, "Hello! Who are you?")
    stream = client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": "Hello! Who are you?"}],
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_a_dropped_stream_frees_its_blocks(server: ServerProcess, client: OpenAI) -> None:
    before_tokens = metrics(server)["vllm:generation_tokens_total"]
    stream = client.completions.create(
        model="nano", prompt="Count:", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    running = metrics(server)
    assert running["vllm:num_requests_running"] == 1 and running["tamis:used_blocks"] > 0

    stream.close()
    deadline_s = time.monotonic() + FREED_S
    now = metrics(server)
    while (now["vllm:num_requests_running"] or now["tamis:used_blocks"]) and time.monotonic() < deadline_s:
        now = metrics(server)
    assert now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0
    assert now["tamis:used_blocks"] == now["tamis:leaked_blocks"] == 0
    assert now["tamis:free_blocks"] == 70
    # Not because it had come to its end.
    assert now["vllm:generation_tokens_total"] - before_tokens < 2000


def test_generate_runs_on_an_nvfp4_cache(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--kv-cache-dtype", "nvfp4", "--temperature", "0", "--max-tokens", "8", "--ignore-eos", "--json"]
    assert main(["generate", "--prompt", "def add(a, b):", *flags, *SMALL]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["finish_reason"], len(answer["token_ids"])) == ("nano", "length", 8)
    assert answer["text"].strip()
