"""Every error as an OpenAI error object, whoever raised it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tamis.errors import InvalidRequestError, NotFoundError, TamisError

log = logging.getLogger("tamis.server")

# A client that is still sending gets the answer only if somebody reads what it sends.
_DISCARDED_BYTES = 64 * 1024 * 1024
_DISCARD_S = 5.0


class InternalError(TamisError):
    """A bug. The client gets the id under which the log has the traceback."""


def internal_error(error: Exception, where: str) -> InternalError:
    """Log `error` once, with its traceback and a fresh id, and return what the client may know of it."""
    error_id = secrets.token_hex(8)
    log.error("Internal error %s in %s", error_id, where, exc_info=error)
    return InternalError(
        f"An internal error occurred (id {error_id}).", hint="The server's log has the details under this id."
    )


class ErrorResponse(Response):
    """The error object of a `TamisError`, with Retry-After, WWW-Authenticate or Allow where they belong."""

    media_type = "application/json"

    def __init__(self, error: TamisError, headers: dict[str, str] | None = None):
        headers = dict(headers or {})
        if error.retry_after_s is not None:
            headers["retry-after"] = str(error.retry_after_s)
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        self.lingers = error.status == 413
        if self.lingers:
            headers["connection"] = "close"
        super().__init__(msgspec.json.encode(error.to_openai()), status_code=error.status, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. After 413 the rest of the body is read and dropped, within bounds: closing a socket
        that still receives would reset the connection and lose the answer."""
        if not self.lingers:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_discard(receive), _DISCARD_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    num_bytes = 0
    while num_bytes < _DISCARDED_BYTES:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def on_http_exception(request: Request, error: Exception) -> Response:
    """FastAPI's handler for what its router raises: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ErrorResponse(
            NotFoundError(f"There is no route {path!r}.", hint="The API is under /v1, such as /v1/chat/completions."),
            headers,
        )
    if error.status_code == 405:
        refused = _refusal(405, "method_not_allowed", f"{path!r} does not take {request.method}.")
        if allowed := {name.lower(): value for name, value in headers.items()}.get("allow"):
            refused.hint = f"Use {allowed}."
        return ErrorResponse(refused, headers)
    return ErrorResponse(_refusal(error.status_code, "invalid_request", str(error.detail)[:200]), headers)


def _refusal(status: int, code: str, message: str, **kwargs: Any) -> InvalidRequestError:
    error = InvalidRequestError(message, code=code, **kwargs)
    error.status = status
    return error
