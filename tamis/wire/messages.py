"""Frames between the client and the engine process: msgpack of the loop's commands and events.

`engine.protocol` defines what is said; each message is one zmq frame, and the news of one step is one message.
"""

from __future__ import annotations

import logging

import msgspec

from tamis.config import EngineConfig
from tamis.engine.messages import ErrorInfo
from tamis.engine.protocol import Command, Event, Refused, Unreadable
from tamis.errors import TamisError

logger = logging.getLogger(__name__)

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


class Start(msgspec.Struct, kw_only=True):
    """The first thing that an engine process reads, from its standard input.

    Attributes:
        config: for loader and scheduler.
        loader: "module:function" with the signature `(EngineConfig, progress) -> (Runner, EngineInfo)`.
        socket_dir: holds the sockets; the engine removes it when its client has died.
        command_address, event_address: zmq endpoints that the client has bound.
    """

    config: EngineConfig
    loader: str
    socket_dir: str
    command_address: str
    event_address: str


class _Named(msgspec.Struct):
    request_id: str


class _Envelope(msgspec.Struct, tag="Add"):
    """What is read of an `Add` that cannot be read whole."""

    request: _Named


_start_decoder: msgspec.msgpack.Decoder[Start] = msgspec.msgpack.Decoder(Start)
_envelope_decoder: msgspec.msgpack.Decoder[_Envelope] = msgspec.msgpack.Decoder(_Envelope)


def encode(message: Command | Event | Start) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def decode_command(frame: bytes) -> Command | Refused | Unreadable:
    """The command in a frame. When there is none, a line in the log and what has to be done about it.

    Returns:
        `Refused`, the answer to the client, where the frame is recognisably somebody's request; else `Unreadable`.
    """
    # SamplingParams and EngineConfig check themselves and raise TamisError.
    try:
        return _command_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, TamisError) as error:
        logger.error("A command of %d bytes cannot be read (%s).", len(frame), error)
        request_id = _request_id(frame)
        if request_id is None:
            return Unreadable(f"a command of {len(frame)} bytes cannot be read: {error}")
        if not isinstance(error, TamisError):
            error = TamisError(f"The engine cannot read this request: {error}.")
        return Refused(request_id, ErrorInfo.of(error))


def decode_event(frame: bytes) -> Event | None:
    """The event in a frame; None, and a line in the log, when there is none."""
    try:
        return _event_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, TamisError) as error:
        logger.warning("A malformed message of %d bytes was dropped (%s).", len(frame), error)
        return None


def decode_start(frame: bytes) -> Start:
    """Raises msgspec.DecodeError or ConfigError: without a start there is no engine."""
    return _start_decoder.decode(frame)


def _request_id(frame: bytes) -> str | None:
    """Whose request it is that a frame fails to start."""
    try:
        return _envelope_decoder.decode(frame).request.request_id
    except (msgspec.DecodeError, RecursionError):
        return None
