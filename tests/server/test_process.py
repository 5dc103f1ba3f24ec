"""The whole server process with a real engine process under it: start-up, signals, death, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tamis.config import EngineConfig
from tamis.server.app import run_server
from tamis.server.config import ServerConfig
from tests.server.harness import assert_error, sse_events

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 30
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


class Server:
    """A running `serve_fake` and what it says."""

    def __init__(self, process: subprocess.Popen[str], ready_file: Path):
        self.process = process
        self.lines: list[str] = []
        self._ready_file = ready_file
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for_line(self, words: str) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in line for line in self.lines), TIMEOUT_S), self.lines
            return next(line for line in self.lines if words in line)

    @property
    def ready_file(self) -> dict[str, Any]:
        return json.loads(self._ready_file.read_text())

    @property
    def engine(self) -> psutil.Process:
        (engine,) = psutil.Process(self.process.pid).children()
        return engine

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.ready_file["url"], timeout=TIMEOUT_S, verify=False)

    def exit_code(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert not self._ready_file.exists()
        return code

    @property
    def output(self) -> str:
        return "\n".join(self.lines)


@contextlib.contextmanager
def serving(folder: Path, tmp_path: Path, **fields: Any) -> Iterator[Server]:
    ready_file = tmp_path / "ready.json"
    fields.setdefault("server", {})["ready_file"] = str(ready_file)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.serve_fake", str(folder), json.dumps(fields)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    server = Server(process, ready_file)
    try:
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        server._reader.join(TIMEOUT_S)


def test_start_serve_and_stop(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving(folder, tmp_path, engine={"hf_overrides": {"load_gate": str(gate)}}) as server:
        server.wait_for_line("loading 40%")
        assert server.ready_file["ready"] is False
        with server.http() as http:
            loading = http.get("/health")
            assert (loading.status_code, loading.json()["stage"], loading.json()["percent"]) == (503, "loading", 40)
            refused = http.post("/v1/chat/completions", json=CHAT)
            assert assert_error(refused, 503)["code"] == "loading"
            assert refused.headers["retry-after"]

            gate.touch()
            line = server.wait_for_line("Tamis is ready")
            assert f"{server.ready_file['url']}/v1 serves fake" in line
            assert server.ready_file["ready"] is True
            assert server.ready_file["pid"] == server.process.pid
            assert http.get("/health").json()["status"] == "ok"
            answer = http.post("/v1/chat/completions", json=CHAT).json()
            assert answer["choices"][0]["message"]["content"] == "aaaaa"
            assert 'tamis:free_blocks{model_name="fake"} 32.0' in http.get("/metrics").text
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    for words in ("float32 (a CPU)", "32 blocks = 4,096 tokens", "1,024 tokens"):
        assert words in server.output
    assert "Traceback" not in server.output and "Uvicorn" not in server.output


def begin_stream(http: httpx.Client, stack: contextlib.ExitStack) -> httpx.Response:
    """A stream whose headers have come, while the engine's gate is closed."""
    request = CHAT | {"stream": True}
    return stack.enter_context(http.stream("POST", "/v1/chat/completions", json=request))


def test_sigterm_lets_running_requests_finish(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving(folder, tmp_path, engine={"hf_overrides": {"step_gate": str(gate)}}) as server:
        server.wait_for_line("Tamis is ready")
        with contextlib.ExitStack() as stack:
            http = stack.enter_context(server.http())
            running = begin_stream(http, stack)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_line("1 request may")
            refused = http.post("/v1/chat/completions", json=CHAT)
            assert assert_error(refused, 503)["code"] == "draining"
            assert refused.headers["retry-after"]
            gate.touch()
            assert sse_events(running.read().decode())[-1] == "[DONE]"
        assert server.exit_code() == 0


def test_drain_timeout_ends_running_requests_with_an_error(folder: Path, tmp_path: Path) -> None:
    overrides = {"hf_overrides": {"step_gate": str(tmp_path / "gate")}}
    with serving(folder, tmp_path, engine=overrides, server={"drain_timeout_s": 0.1}) as server:
        server.wait_for_line("Tamis is ready")
        with contextlib.ExitStack() as stack:
            http = stack.enter_context(server.http())
            running = begin_stream(http, stack)
            engine = server.engine
            server.process.send_signal(signal.SIGINT)
            events = sse_events(running.read().decode())
            assert events[-1]["error"]["type"] == "server_error"
        assert server.exit_code() == 0
        assert not engine.is_running()


def test_a_second_signal_ends_at_once(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving(folder, tmp_path, engine={"hf_overrides": {"step_gate": str(gate)}}) as server:
        server.wait_for_line("Tamis is ready")
        with contextlib.ExitStack() as stack:
            http = stack.enter_context(server.http())
            begin_stream(http, stack)
            engine = server.engine
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_line("1 request may")
            started_s = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.exit_code() == 128 + signal.SIGTERM
            assert time.monotonic() - started_s < 2
        engine.wait(TIMEOUT_S)
    assert "Traceback" not in server.output


def test_engine_death_ends_streams_and_the_server(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving(folder, tmp_path, engine={"hf_overrides": {"step_gate": str(gate)}}) as server:
        server.wait_for_line("Tamis is ready")
        with contextlib.ExitStack() as stack:
            http = stack.enter_context(server.http())
            running = begin_stream(http, stack)
            started_s = time.monotonic()
            os.kill(server.engine.pid, signal.SIGKILL)
            events = sse_events(running.read().decode())
            assert time.monotonic() - started_s < 2
            assert events[-1]["error"]["code"] == "engine_dead"
            health = http.get("/health")
            assert health.status_code == 503 and "SIGKILL" in health.json()["reason"]
        assert server.exit_code() == 1
    assert "SIGKILL" in server.output and "Traceback" not in server.output


def test_engine_death_while_draining_is_reported_too(folder: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving(folder, tmp_path, engine={"hf_overrides": {"step_gate": str(gate)}}) as server:
        server.wait_for_line("Tamis is ready")
        with contextlib.ExitStack() as stack:
            http = stack.enter_context(server.http())
            running = begin_stream(http, stack)
            engine = server.engine
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_line("1 request may")
            os.kill(engine.pid, signal.SIGKILL)
            assert sse_events(running.read().decode())[-1]["error"]["code"] == "engine_dead"
        assert server.exit_code() == 1
    assert "The engine has stopped" in server.output and "SIGKILL" in server.output


def test_sigterm_while_loading_leaves_at_once(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path, engine={"hf_overrides": {"load_gate": str(tmp_path / "gate")}}) as server:
        server.wait_for_line("loading 40%")
        engine = server.engine
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
        assert not engine.is_running()
    assert "exception" not in server.output.lower()


def test_a_load_error_is_one_sentence_and_exit_code_2(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path, engine={"hf_overrides": {"load_error": "Shard 2 is cut off."}}) as server:
        assert server.exit_code() == 2
    assert "error: Shard 2 is cut off. Download it again." in server.output
    assert "Traceback" not in server.output


def test_a_missing_tokenizer_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    # Loading the weights would wait for ever: the error must not wait for them.
    with serving(folder, tmp_path, engine={"hf_overrides": {"load_gate": str(tmp_path / "gate")}}) as server:
        assert server.exit_code() == 2
    assert "has no tokenizer.json" in server.output
    assert "Traceback" not in server.output


def test_a_taken_port_is_one_sentence_and_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_server(EngineConfig(model=str(folder)), ServerConfig(port=port)) == 2
    assert f"error: Cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing/ready.json", "file/ready.json", "folder", "/"])
def test_a_ready_file_that_cannot_be_written_is_one_sentence_and_exit_code_2(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / name)
    assert run_server(EngineConfig(model=str(folder)), ServerConfig(port=0, ready_file=path)) == 2
    assert f"error: --ready-file {path!r} cannot be written" in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]
