"""`tamis chat`: a conversation at the terminal, or from a pipe."""

from __future__ import annotations

import difflib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from types import FrameType
from typing import Any

from tamis.cli.chat_backends import Backend, LocalBackend, Message, ServerBackend
from tamis.errors import InvalidRequestError, TamisError

HELP = """\
/help           this list
/reset          forget the conversation
/system TEXT    set the system message (without TEXT: show it) and forget the conversation
/exit           leave, as Ctrl-D does
Ctrl-C stops an answer. A message that begins with / is written with //."""

COMMANDS = ("/help", "/reset", "/system", "/exit")


def chat(
    engine: Mapping[str, Any],
    sampling: Mapping[str, Any],
    *,
    url: str | None,
    api_key: str | None,
    system: str | None,
) -> int:
    """Talk until the input ends; returns the exit code.

    Args:
        engine: fields of `EngineConfig`, for a model in this process.
        sampling: fields of `SamplingParams`, those given.
        url: a server to talk to instead.
        api_key: of that server.
        system: first system message.
    """
    if url is not None and (local := sorted(engine.keys() - sampling.keys())):
        flag = local[0].replace("_", "-")
        raise InvalidRequestError(
            f"--{flag} is for a model in this process, but --url names a server.", param=flag, hint="Leave one out."
        )
    if url is None and api_key is not None:
        raise InvalidRequestError("--api-key needs a server.", param="api_key", hint="Add --url.")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with ExitStack() as stack:
        if url is not None:
            backend: Backend = ServerBackend(url, api_key, sampling)
        else:
            from tamis.frontend.llm import LLM

            backend = LocalBackend(stack.enter_context(LLM(progress=True, **engine)), sampling)
        if interactive:
            import readline  # noqa: F401
        Conversation(backend, system, interactive=interactive).run(_read_line if interactive else _read_pipe)
    return 0


class Conversation:
    """The history and its commands.

    Args:
        backend: who answers.
        system: system message.
        interactive: whether a person sits there: prompts are shown, and an error is shown instead of raised.
    """

    def __init__(self, backend: Backend, system: str | None, *, interactive: bool) -> None:
        self._backend = backend
        self._system = system
        self._interactive = interactive
        self.messages: list[Message] = []

    def run(self, read: Callable[[], str | None]) -> None:
        """Read lines until None or /exit.

        Raises:
            TamisError: an answer failed and nobody sits there to try again.
        """
        self._say(f"Chatting with {self._backend.name}. /help lists the commands, Ctrl-D leaves.")
        while True:
            try:
                line = read()
            except KeyboardInterrupt:
                self._say("\nCtrl-D leaves.")
                continue
            if line is None or line.strip() in ("/exit", "/quit"):
                return
            if line.startswith("/") and not line.startswith("//"):
                self._command(line.strip())
            elif line.strip():
                self._turn(line.removeprefix("/") if line.startswith("//") else line)

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/help":
            self._say(HELP, always=True)
        elif name == "/reset":
            self.messages.clear()
            self._say("The conversation is forgotten.")
        elif name == "/system":
            if argument.strip():
                self._system = argument.strip()
                self.messages.clear()
            self._say(f"System message: {self._system or 'none'}", always=True)
        else:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {near[0]}?" if near else "/help lists the commands."
            self._failed(InvalidRequestError(f"There is no command {name}.", hint=hint))

    def _turn(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        system = [{"role": "system", "content": self._system}] if self._system else []
        answer: list[str] = []
        try:
            self._stream([*system, *self.messages], answer)
        except TamisError as error:
            self.messages.pop()
            if answer:
                print()
            self._failed(error)
            return
        print(flush=True)
        self.messages.append({"role": "assistant", "content": "".join(answer)})

    def _stream(self, messages: list[Message], answer: list[str]) -> None:
        """Print the answer as it comes and collect it in `answer`; Ctrl-C ends it early."""
        with closing(self._backend.answer(messages)) as pieces, _ctrl_c(self._backend.can_be_interrupted) as stopped:
            try:
                for piece in pieces:
                    print(piece, end="", flush=True)
                    answer.append(piece)
                    if stopped():
                        break
            except KeyboardInterrupt:
                if not self._backend.can_be_interrupted:
                    raise

    def _failed(self, error: TamisError) -> None:
        if not self._interactive:
            raise error
        print(f"error: {error.sentence()}", file=sys.stderr)

    def _say(self, text: str, *, always: bool = False) -> None:
        if self._interactive or always:
            print(text, file=sys.stderr)


@contextmanager
def _ctrl_c(may_raise: bool) -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C raises KeyboardInterrupt when it may; else the first one only sets what the yielded call tells."""
    pressed = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if may_raise or pressed:
            raise KeyboardInterrupt
        pressed = True

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def _read_line() -> str | None:
    try:
        return input("> ")
    except EOFError:
        print()
        return None
    except UnicodeDecodeError as error:
        raise _not_utf8() from error


def _read_pipe() -> str | None:
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise _not_utf8() from error
    return line.rstrip("\n") if line else None


def _not_utf8() -> TamisError:
    return InvalidRequestError("The input is not valid UTF-8.", param="stdin")
