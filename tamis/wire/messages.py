"""Frames between the client and the engine process: msgpack of the loop's commands and events.

`engine.protocol` defines what is said; each message is one zmq frame, and the news of one step is one message.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

from tamis.config import EngineConfig
from tamis.engine.protocol import Command, Event
from tamis.errors import TamisError

T = TypeVar("T")

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


_start_decoder: msgspec.msgpack.Decoder[Start] = msgspec.msgpack.Decoder(Start)


def encode(message: Command | Event | Start) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def decode_command(frame: bytes) -> Command | None:
    """The command in a frame; None, and a line in the log, when there is none."""
    return _decode(_command_decoder, frame)


def decode_event(frame: bytes) -> Event | None:
    """The event in a frame; None, and a line in the log, when there is none."""
    return _decode(_event_decoder, frame)


def decode_start(frame: bytes) -> Start:
    """Raises msgspec.DecodeError or ConfigError: without a start there is no engine."""
    return _start_decoder.decode(frame)


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T | None:
    # SamplingParams and EngineConfig check themselves and raise TamisError.
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, TamisError) as error:
        logger.warning("A malformed message of %d bytes was dropped (%s).", len(frame), error)
        return None
