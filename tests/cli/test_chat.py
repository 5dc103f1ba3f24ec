from __future__ import annotations

import io
import json
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tamis.cli.chat import Conversation
from tamis.cli.chat_backends import Message
from tamis.cli.main import main
from tamis.errors import ContextLengthError, TamisError


class FakeBackend:
    """Answers with the scripted pieces; an exception among them is raised, a signal number is sent to this process."""

    name = "fake"

    def __init__(self, *pieces: str | Exception | signal.Signals, can_be_interrupted: bool = False) -> None:
        self.pieces = pieces
        self.can_be_interrupted = can_be_interrupted
        self.asked: list[list[Message]] = []
        self.closed = 0

    def answer(self, messages: list[Message]) -> Generator[str]:
        self.asked.append([dict(message) for message in messages])
        try:
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, signal.Signals):
                    signal.raise_signal(piece)
                else:
                    yield piece
        finally:
            self.closed += 1


def talk(backend: FakeBackend, *lines: str, interactive: bool = True, system: str | None = None) -> Conversation:
    conversation = Conversation(backend, system, interactive=interactive)
    rest = list(lines)
    conversation.run(lambda: rest.pop(0) if rest else None)
    return conversation


def test_history_grows_with_each_turn(capsys: pytest.CaptureFixture[str]) -> None:
    backend = FakeBackend("Y", "o")
    talk(backend, "hi", "again", system="S")
    assert backend.asked[1] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "again"},
    ]
    assert capsys.readouterr().out == "Yo\nYo\n"


def test_reset_forgets_and_system_sets_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    backend = FakeBackend("a")
    talk(backend, "one", "/reset", "two", "/system Be brief.", "three", "/system")
    user = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    assert backend.asked == [user[:1], user[1:2], [{"role": "system", "content": "Be brief."}, user[2]]]
    assert capsys.readouterr().err.count("System message: Be brief.") == 2


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    talk(FakeBackend(), "/help")
    assert {"/help", "/reset", "/system", "/exit"} <= set(capsys.readouterr().err.split())


@pytest.mark.parametrize("leave", ["/exit", "/quit", " /exit "])
def test_exit_leaves(leave: str) -> None:
    backend = FakeBackend("a")
    talk(backend, leave, "never said")
    assert backend.asked == []


def test_blank_lines_are_skipped_and_two_slashes_make_a_message() -> None:
    backend = FakeBackend("a")
    talk(backend, "", "   ", "//usr/bin")
    assert backend.asked == [[{"role": "user", "content": "/usr/bin"}]]


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    talk(FakeBackend(), "/rest")
    assert "There is no command /rest. Did you mean /reset?" in capsys.readouterr().err


def test_an_error_is_shown_and_its_message_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    backend = FakeBackend("par", ContextLengthError("Too long.", hint="/reset forgets."))
    conversation = talk(backend, "hi", "again")
    assert conversation.messages == []
    assert len(backend.asked) == 2
    assert "error: Too long. /reset forgets." in capsys.readouterr().err


def test_from_a_pipe_an_error_ends_it() -> None:
    backend = FakeBackend(ContextLengthError("Too long."))
    with pytest.raises(TamisError, match="Too long"):
        talk(backend, "hi", "again", interactive=False)
    assert len(backend.asked) == 1


@pytest.mark.parametrize("can_be_interrupted", [False, True], ids=["in-process", "server"])
def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(can_be_interrupted: bool) -> None:
    backend = FakeBackend("one ", signal.SIGINT, "two ", "three", can_be_interrupted=can_be_interrupted)
    before = signal.getsignal(signal.SIGINT)
    conversation = talk(backend, "hi", "/exit")
    assert conversation.messages[1]["content"] == ("one " if can_be_interrupted else "one two ")
    assert backend.closed == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_leaves_a_model_that_does_not_answer() -> None:
    backend = FakeBackend(signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        talk(backend, "hi")
    assert backend.closed == 1


def test_ctrl_c_at_the_prompt_says_how_to_leave(capsys: pytest.CaptureFixture[str]) -> None:
    script: Iterator[Callable[[], str | None]] = iter([lambda: signal.raise_signal(signal.SIGINT), lambda: None])  # type: ignore[list-item, return-value]
    Conversation(FakeBackend(), None, interactive=True).run(lambda: next(script)())
    assert "Ctrl-D leaves." in capsys.readouterr().err


def test_piped_lines_are_answered_by_a_model_in_this_process(
    replies: Callable, model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replies("hello")
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\nthere"))
    assert main(["chat", str(model_folder)]) == 0
    assert capsys.readouterr().out == "hello\nhello\n"


class Api(BaseHTTPRequestHandler):
    """A server of the OpenAI API; `fault` changes what it says."""

    fault: ClassVar[str] = ""
    requests: ClassVar[list[tuple[dict[str, Any], str | None]]] = []

    def log_message(self, format: str, *args: object) -> None:
        pass

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self.reply(200, b"<html>" if self.fault == "not-openai" else b'{"data": [{"id": "served"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((body, self.headers["Authorization"]))
        if self.fault == "refuses":
            return self.reply(400, b'{"error": {"message": "Too long by 3 tokens."}}')
        chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("", "Hé", "llo")]
        lines = [": ping", *(f"data: {json.dumps(chunk, ensure_ascii=False)}" for chunk in chunks)]
        if self.fault == "fails":
            lines.append('data: {"error": {"message": "The engine died."}}')
        if self.fault != "cut":
            lines.append("data: [DONE]")
        return self.reply(200, "".join(f"{line}\n\n" for line in lines).encode())


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Api, "requests", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_server_answers(
    api: str, suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    flags = ["--api-key", "k", "--temperature", "0", "--seed", "4", "--stop", "x"]
    assert main(["chat", "--url", api + suffix, *flags]) == 0
    assert capsys.readouterr().out == "Héllo\n"
    body = {"model": "served", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    assert Api.requests == [({**body, "temperature": 0.0, "seed": 4, "stop": ["x"]}, "Bearer k")]


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("refuses", 2, "Too long by 3 tokens."),
        ("fails", 1, "The engine died."),
        ("cut", 1, "ended its answer without [DONE]"),
        ("not-openai", 1, "does not speak the OpenAI API"),
    ],
)
def test_a_servers_fault_is_one_sentence(
    api: str, fault: str, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Api, "fault", fault)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
    assert main(["chat", "--url", api]) == code
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_nobody_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/v1 cannot be reached" in capsys.readouterr().err
