"""`make demo`: start the server, ask one chat question as any client would, print the answer and a card, stop.

Progress goes to stderr; stdout has the answer, the card and, as its last line, one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tamis.cli.server_process import ServerProcess, ServerProcessError, serve_command
from tamis.errors import TamisError

if TYPE_CHECKING:
    from rich.table import Table

QUESTION = "Hello! Who are you, and what can you do?"


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured; the last line of its output.

    Attributes:
        model, question, answer, finish_reason: the exchange.
        load_s: seconds from starting the server until it was ready.
        ttft_s: seconds from sending the question until the first text.
        tokens_per_s: after the first text, until the last; 0.0 when there was only one token.
        prompt_tokens, completion_tokens, cached_tokens: the server's usage.
    """

    model: str
    question: str
    answer: str
    finish_reason: str
    load_s: float
    ttft_s: float
    tokens_per_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class DemoError(TamisError):
    """The server ran, but its answer is not one."""

    code = "demo_failed"


def ask(url: str, question: str, max_tokens: int, load_s: float, write: Callable[[str], None]) -> DemoResult:
    """Ask through the official client, streaming.

    Args:
        url: the server's root.
        write: called with each piece of the answer as it arrives.

    Raises:
        DemoError: the answer is empty, or ends without a finish reason or usage.
        openai.OpenAIError: what the client says of the server.
    """
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        pieces: list[str] = []
        finish_reason, usage = None, None
        start_s = first_s = last_s = time.perf_counter()
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finish_reason = choice.finish_reason or finish_reason
                if choice.delta.content:
                    last_s = time.perf_counter()
                    first_s = first_s if pieces else last_s
                    pieces.append(choice.delta.content)
                    write(choice.delta.content)
    if finish_reason is None or usage is None:
        raise DemoError("The stream ended without a finish reason and usage.")
    if not "".join(pieces).strip():
        raise DemoError(f"The model answered nothing (finish reason {finish_reason!r}).")
    details = usage.prompt_tokens_details
    decode_s = last_s - first_s
    return DemoResult(
        model=model,
        question=question,
        answer="".join(pieces),
        finish_reason=finish_reason,
        load_s=round(load_s, 3),
        ttft_s=round(first_s - start_s, 4),
        tokens_per_s=round((usage.completion_tokens - 1) / decode_s, 1) if decode_s > 0 else 0.0,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )


def card(result: DemoResult) -> Table:
    """The result as a small table."""
    from rich.table import Table

    table = Table(title="Tamis demo", show_header=False, min_width=48)
    table.add_row("model", result.model)
    table.add_row("ready after", f"{result.load_s:.1f} s")
    table.add_row("first token after", f"{result.ttft_s * 1000:.0f} ms")
    table.add_row("speed", f"{result.tokens_per_s:.1f} tokens/s")
    table.add_row("prompt", f"{result.prompt_tokens} tokens, {result.cached_tokens} cached")
    table.add_row("answer", f"{result.completion_tokens} tokens, ended by {result.finish_reason}")
    return table


def run_demo(command: list[str], *, question: str, max_tokens: int, timeout_s: float) -> int:
    """Start `command`, ask, print, stop. Whatever happens, the server is gone afterwards.

    Returns:
        Exit code: 0, or 1 after one sentence and the tail of the server's log on stderr.
    """
    from openai import OpenAIError
    from rich.console import Console

    server = ServerProcess(command)
    try:
        with server:
            start_s = time.perf_counter()
            try:
                server.wait_ready(lambda stage, percent: _say(f"server: {stage} {percent}%"), timeout_s)
                load_s = time.perf_counter() - start_s
                _say(f"server: ready on {server.url}")
                print(f"> {question}\n", flush=True)
                result = ask(server.url, question, max_tokens, load_s, lambda text: print(text, end="", flush=True))
                print("\n")
            except (OpenAIError, DemoError) as error:
                raise ServerProcessError(f"Asking failed: {error}", server.log_tail()) from error
            server.stop()
    except ServerProcessError as error:
        _say(f"\n{error.sentence()}")
        if error.log_tail:
            _say(f"The server's last lines:\n{error.log_tail}")
        return 1
    Console().print(card(result))
    print(json.dumps(dataclasses.asdict(result)))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _leave(signum: int, frame: FrameType | None) -> None:
    # As an exception, so that the with block stops the server.
    sys.exit(128 + signum)


app = App(name="python -m tamis.cli.demo", help="Start the server, chat with it once, stop.", version_flags=[])


@app.default
def demo(
    *serve_flags: Annotated[str, Parameter(allow_leading_hyphen=True, help="Model and flags for tamis serve.")],
    question: Annotated[str, Parameter(help="What to ask.")] = QUESTION,
    max_tokens: Annotated[int, Parameter(help="Longest answer in tokens.")] = 128,
    timeout_s: Annotated[float, Parameter(help="Seconds the server may take to load.")] = 600.0,
) -> int:
    """Run the demo and return its exit code."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        return run_demo(serve_command(serve_flags), question=question, max_tokens=max_tokens, timeout_s=timeout_s)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(app())
