"""A stand-in for `tamis serve`, run as a script: the few routes that the demo uses, with faults on demand.

    python fake_server.py FAULT --ready-file PATH

FAULT: none · dies-loading · stays-loading · errors (500 instead of an answer) · silent (an empty answer) ·
cut (the stream ends early) · bad-exit (exit code 3 on SIGTERM) · deaf (ignores SIGTERM).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULT, READY_FILE = sys.argv[1], Path(sys.argv[3])
ANSWER = ["I am ", "a stand-in", "."]


def chunk(
    delta: dict[str, str] | None, finish_reason: str | None = None, usage: dict[str, object] | None = None
) -> str:
    """One SSE event of a chat completion stream; no choice when delta is None."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake", "choices": choices}
    return f"data: {json.dumps(body | ({'usage': usage} if usage else {}))}\n\n"


class Handler(BaseHTTPRequestHandler):
    """Answers like a server that needs two health checks to load."""

    health_checks = 0

    def log_message(self, format: str, *args: object) -> None:
        """No access log."""

    def reply(self, status: int, body: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            model = {"id": "fake", "object": "model", "created": 1, "owned_by": "tests"}
            return self.reply(200, json.dumps({"object": "list", "data": [model]}))
        Handler.health_checks += 1
        if FAULT == "dies-loading" and Handler.health_checks > 1:
            print("cannot load: shard 2 is truncated", flush=True)
            os._exit(2)
        if FAULT == "stays-loading" or Handler.health_checks <= 2:
            stage = {"status": "loading", "stage": "loading", "percent": min(40 * Handler.health_checks, 80)}
            return self.reply(503, json.dumps(stage))
        return self.reply(200, json.dumps({"status": "ok"}))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert request["stream"] and request["messages"][0]["role"] == "user", request
        if FAULT == "errors":
            print("step 3 failed", flush=True)
            return self.reply(500, json.dumps({"error": {"message": "step 3 failed", "type": "server_error"}}))
        events = [chunk({"role": "assistant", "content": ""})]
        events += [] if FAULT == "silent" else [chunk({"content": text}) for text in ANSWER]
        if FAULT != "cut":
            usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
            usage |= {"prompt_tokens_details": {"cached_tokens": 5}}
            events += [chunk({}, "stop"), chunk(None, usage=usage)]
        return self.reply(200, "".join(events) + "data: [DONE]\n\n", "text/event-stream")


def leave(signum: int, frame: object) -> None:
    """What SIGTERM does."""
    if FAULT != "deaf":
        os._exit(3 if FAULT == "bad-exit" else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    READY_FILE.write_text(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "pid": os.getpid()}))
    server.serve_forever()
