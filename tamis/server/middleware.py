"""The outermost layer, pure ASGI: request id, API key, the last net for exceptions, access log."""

from __future__ import annotations

import hmac
import json
import logging
import re
import time
import uuid
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tamis.errors import AuthenticationError, TamisError
from tamis.server.disconnect import ClientGone
from tamis.server.errors import ErrorResponse, internal_error
from tamis.server.service import Service

access_log = logging.getLogger("tamis.access")

# What nginx logs for a client that closed the connection before the answer.
CLIENT_CLOSED_REQUEST = 499
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Edge:
    """Wraps the application. Nothing raised below passes it.

    Every response carries X-Request-Id: the client's own when it is made of at most 128 letters, digits and `._:-`,
    else a new one. Under /v1 a key is checked when the server has any, and the request counts as in flight.
    """

    def __init__(self, app: ASGIApp, service: Service):
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_s = time.monotonic()
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else uuid.uuid4().hex
        status = CLIENT_CLOSED_REQUEST
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                started = True
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        is_api = scope["path"] == "/v1" or scope["path"].startswith("/v1/")
        try:
            if is_api:
                check_key(headers.get("authorization", ""), self.service.config.api_key)
                with self.service.in_flight():
                    await self.app(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        except ClientGone:
            status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            if not isinstance(error, TamisError):
                error = internal_error(error, f"{scope['method']} {scope['path']!r}")
            if started:  # all that is left is to cut the connection
                raise error from None
            await ErrorResponse(error)(scope, receive, send_with_id)
        finally:
            self.service.metrics.count_response(status)
            if self.service.config.access_log:
                _write_access_line(scope, status, request_id, time.monotonic() - started_s)


def check_key(authorization: str, keys: tuple[str, ...]) -> None:
    """Check an Authorization header against the server's keys in constant time; no keys, no check.

    Raises:
        AuthenticationError: no bearer token, or an unknown one.
    """
    if not keys:
        return
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise AuthenticationError(
            "The request has no API key.", hint="Send the header 'Authorization: Bearer KEY'.", code="missing_api_key"
        )
    given = token.strip().encode()
    # Every key is compared, so that the time tells nothing about which one came close.
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if not any(matches):
        raise AuthenticationError("The API key is not one of the server's.", hint="Check the key you send.")


def _write_access_line(scope: Scope, status: int, request_id: str, seconds: float) -> None:
    client = scope.get("client")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "duration_s": round(seconds, 6),
        "request_id": request_id,
    }
    access_log.info("%s", json.dumps(line))
