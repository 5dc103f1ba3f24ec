"""A request body from the wire to plain JSON values, with every limit that protects the server."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from tamis.errors import InvalidRequestError, RequestTimeoutError, RequestTooLargeError
from tamis.server.disconnect import ClientGone

MAX_DEPTH = 64
# A client that stops sending is answered after this long, however large its body may yet become.
BODY_IDLE_S = 30.0
# Parsing a body of this size takes about a millisecond; longer ones are parsed off the event loop.
_OFF_LOOP_BYTES = 64 * 1024
# Each escape as a whole, so that neither pairs nor escaped backslashes are taken for what group 1 is: half of a pair.
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


async def read_json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """Read and parse the body of `request`, which must be a JSON object.

    Returns plain values: dict, list, str, int (within 64 bits), float (finite), bool, None; nested at most
    `MAX_DEPTH` deep, no key twice in an object.

    Raises:
        RequestTooLargeError: more than `max_bytes`, known from Content-Length or as soon as the limit is passed.
        InvalidRequestError: wrong content type, a compressed body, invalid UTF-8, malformed JSON, too deep, not an
            object, a key that stands twice.
        RequestTimeoutError: nothing came for `BODY_IDLE_S`.
        ClientGone: the client went away before the body was complete.
    """
    _check_content_type(request)
    body = await _read(request, max_bytes)
    if len(body) < _OFF_LOOP_BYTES:
        return parse_json_object(body)
    return await asyncio.to_thread(parse_json_object, body)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse `body`; errors and returned values as in `read_json_object`."""
    if not body:
        raise InvalidRequestError("The body is empty.", code="invalid_json", hint="Send a JSON object.")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _malformed(body, error) from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
        raise InvalidRequestError(f"The body is {kind}, but must be a JSON object.", code="invalid_json")
    _check_values(value)
    _check_keys(body)
    return value


def _check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    media_type, _, parameters = content_type.partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidRequestError(
            f"Content-Type is {content_type[:80]!r}, but must be application/json.", code="invalid_content_type"
        )
    charset = parameters.partition("charset=")[2].strip(' "').lower()
    if charset not in ("", "utf-8", "utf8"):
        raise InvalidRequestError(
            f"Content-Type has charset {charset[:40]!r}, but JSON must be utf-8.", code="invalid_content_type"
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise InvalidRequestError(
            f"Content-Encoding is {encoding[:40]!r}, but bodies are taken as they are.",
            code="invalid_content_encoding",
            hint="Send the body uncompressed.",
        )


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(f"{int(announced[:20])} bytes", max_bytes)
    chunks = []
    size = 0
    stream = request.stream()
    try:
        while (chunk := await asyncio.wait_for(anext(stream, None), BODY_IDLE_S)) is not None:
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(f"over {max_bytes} bytes", max_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        raise RequestTimeoutError(
            f"The body stopped after {size} bytes, and nothing more came for {BODY_IDLE_S:g} s.",
            hint="Send the whole body; Content-Length must be its size.",
        ) from None
    return b"".join(chunks)


def _too_large(size: str, max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The body is {size}, but at most {max_bytes} are accepted.",
        hint="Shorten the request, or raise --max-body-bytes on the server.",
    )


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(f"The body is nested more than {MAX_DEPTH} levels deep.", code="invalid_json")


def _malformed(body: bytes, error: Exception) -> InvalidRequestError:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as utf8:
        byte = body[utf8.start]
        return InvalidRequestError(
            f"The body is not valid UTF-8: byte 0x{byte:02x} at position {utf8.start}.", code="invalid_utf8"
        )
    if half := next((escape for escape in _ESCAPES.finditer(body) if escape[1]), None):
        return InvalidRequestError(
            f"The body is not valid JSON: {half[0].decode()} at byte {half.start()} is half of a surrogate pair.",
            code="invalid_json",
            hint="Send well-formed Unicode.",
        )
    reason = str(error).removeprefix("JSON is malformed: ")
    return InvalidRequestError(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _check_keys(body: bytes) -> None:
    """Refuse an object that has a key twice: whichever value was taken, the other would be dropped without a word."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1 and len(dict(pairs)) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise InvalidRequestError(
                f"The body has the key {twice[:80]!r} twice in one object.",
                param=twice[:80],
                code="invalid_json",
                hint="Leave one of them out.",
            )

    json.loads(body, object_pairs_hook=check)


def _check_values(root: dict[str, Any]) -> None:
    """Bound depth and integers here once, so that nothing behind (templates, the wire) meets what it cannot carry."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for container in level:
            for value in container.values() if type(container) is dict else container:
                kind = type(value)
                if kind is dict or kind is list:
                    deeper.append(value)
                elif kind is int and not -(2**63) <= value < 2**64:
                    raise InvalidRequestError(
                        f"The body has an integer of {value.bit_length()} bits, but at most 64 are accepted.",
                        code="invalid_json",
                    )
        if not deeper:
            return
        level = deeper
    raise _too_deep()
