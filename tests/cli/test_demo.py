"""The demo against a stand-in server: what it prints, and that it fails in one sentence and leaves nothing running."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tamis.cli.demo import DemoResult, card, run_demo
from tamis.cli.server_process import ServerProcess, ServerProcessError, serve_command

FAKE_SERVER = Path(__file__).with_name("fake_server.py")


def fake(fault: str) -> list[str]:
    return [sys.executable, str(FAKE_SERVER), fault]


def demo(fault: str, timeout_s: float = 30.0) -> int:
    return run_demo(fake(fault), question="Who are you?", max_tokens=8, timeout_s=timeout_s)


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_demo_streams_the_answer_and_ends_with_json(capfd: pytest.CaptureFixture[str]) -> None:
    code = demo("none")

    out, err = capfd.readouterr()
    result = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert result["answer"] == "I am a stand-in."
    assert (result["prompt_tokens"], result["completion_tokens"], result["cached_tokens"]) == (7, 3, 5)
    assert result["finish_reason"] == "stop"
    assert out.startswith("> Who are you?\n\nI am a stand-in.\n")
    assert "loading 40%" in err
    assert "ready on http://127.0.0.1:" in err


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("dies-loading", ["ended by itself with exit code 2", "shard 2 is truncated"]),
        ("stays-loading", ["still loading after 0.5 s"]),
        ("errors", ["Asking failed", "step 3 failed"]),
        ("silent", ["answered nothing"]),
        ("cut", ["without a finish reason"]),
        ("bad-exit", ["stopped with exit code 3"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_demo_fails_in_one_sentence(fault: str, says: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    code = demo(fault, timeout_s=0.5 if fault == "stays-loading" else 30.0)

    out, err = capfd.readouterr()
    assert code == 1
    assert all(words in err for words in says), err
    assert "Traceback" not in err
    assert not out.rstrip().endswith("}")


def test_a_command_that_cannot_start_is_an_error() -> None:
    server = ServerProcess([sys.executable, "-c", "import sys; sys.exit('no model here')"])

    with server, pytest.raises(ServerProcessError, match="exit code 1") as error:
        server.wait_ready(lambda stage, percent: None)

    assert error.value.log_tail == "no model here"


def test_the_server_is_gone_after_an_interruption() -> None:
    pids: list[int] = []

    with pytest.raises(KeyboardInterrupt), ServerProcess(fake("none")) as server:
        server.wait_ready(lambda stage, percent: None)
        pids.append(server.pid)
        assert running(pids[0])
        raise KeyboardInterrupt

    assert not running(pids[0])


def test_a_server_that_ignores_the_signal_is_killed_and_reported() -> None:
    with ServerProcess(fake("deaf"), kill_after_s=0.2) as server:
        server.wait_ready(lambda stage, percent: None)
        with pytest.raises(ServerProcessError, match=r"did not stop within 0\.2 s"):
            server.stop(timeout_s=0.2)

    assert not running(server.pid)


def test_serve_command_takes_a_free_port_and_passes_flags_on() -> None:
    command = serve_command(["some/folder", "--dtype", "float32"])

    assert command == [sys.executable, "-m", "tamis", "serve", "some/folder", "--dtype", "float32", "--port", "0"]


def test_the_card_names_every_figure_with_its_unit() -> None:
    result = DemoResult(
        model="nano",
        question="?",
        answer="!",
        finish_reason="length",
        load_s=1.26,
        ttft_s=0.0421,
        tokens_per_s=57.34,
        prompt_tokens=19,
        completion_tokens=128,
        cached_tokens=0,
    )
    text = io.StringIO()

    Console(file=text, width=80).print(card(result))

    for figure in ("nano", "1.3 s", "42 ms", "57.3 tokens/s", "19 tokens, 0 cached", "128 tokens, ended by length"):
        assert figure in text.getvalue()
