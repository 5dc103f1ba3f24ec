"""uvicorn, set up for this server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from tamis.errors import InvalidRequestError

# Clients reuse connections; ours must not be the side that closes an idle one under a request on its way.
KEEP_ALIVE_S = 75
# What is still open when the server ends has had its drain already.
CLOSE_S = 2


_NOT_HTTP = InvalidRequestError(
    "What was sent is not valid HTTP/1.1.",
    code="invalid_http",
    hint="Check the request line, the headers, their length and the framing of the body.",
)


def _response_to_garbage() -> bytes:
    body = msgspec.json.encode(_NOT_HTTP.to_openai())
    head = (
        f"HTTP/1.1 {_NOT_HTTP.status} Bad Request\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection of uvicorn's that answers what is not HTTP with an error object."""

    def send_400_response(self, msg: str) -> None:
        """Answer, unless the client is in the middle of another answer, and hang up."""
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answering:
            self.transport.write(_response_to_garbage())
        self.transport.close()


class Http(uvicorn.Server):
    """uvicorn without its own signal handling: signals belong to the process, which drains first.

    `app` is an ASGI application without lifespan.
    """

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's handlers in place."""
        yield
