"""The engine's own process: `python -m tamis.wire.engine_process`, started by `RemoteClient` and by nobody else.

Standard input brings one length-prefixed `Start` and then stays open as the lifeline: when it ends, the client is
gone, however it went, and so is this process. Interrupts are the client's business: it drains, then sends `Stop`.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from queue import SimpleQueue

import zmq

from tamis.config import EngineConfig
from tamis.engine.loop import Load, Progress, run_engine
from tamis.engine.messages import EngineInfo
from tamis.engine.plan import Runner
from tamis.engine.protocol import Command, Event, Refused, Stop, Unreadable
from tamis.wire.messages import Start, decode_command, decode_start, encode

FLUSH_MS = 2000
LIFELINE_FD = 0


def main() -> int:
    """Exit code 0 when told to stop, 1 when loading failed or the engine died."""
    # Ctrl-C and a supervisor's SIGTERM reach the whole family; the parent lets requests finish first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="engine %(levelname)s %(name)s: %(message)s")
    start = decode_start(_read_start())
    threading.Thread(target=_follow_client, args=(start.socket_dir,), name="tamis-lifeline", daemon=True).start()
    commands: SimpleQueue[Command | Unreadable] = SimpleQueue()
    stopping = threading.Event()
    context = zmq.Context()
    emitter = _Emitter(context, start.event_address)
    threading.Thread(
        target=_receive,
        args=(context, start.command_address, commands, stopping, emitter),
        name="tamis-commands",
        daemon=True,
    ).start()
    stopped = run_engine(start.config, _loader(start), commands, emitter, stopping)
    emitter.close()
    context.term()
    return 0 if stopped else 1


class _Emitter:
    """Sends events, from the engine's thread, from threads that load and from the one that takes commands."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str):
        self._lock = threading.Lock()
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.connect(address)

    def __call__(self, event: Event) -> None:
        with self._lock:
            # A command may be refused when the engine has just ended; nobody waits for that any more.
            if not self._socket.closed:
                self._socket.send(encode(event))

    def close(self) -> None:
        with self._lock:
            self._socket.close(linger=FLUSH_MS)


def _receive(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    commands: SimpleQueue[Command | Unreadable],
    stopping: threading.Event,
    emit: Callable[[Event], None],
) -> None:
    with context.socket(zmq.PULL) as socket:
        socket.set_hwm(0)
        socket.connect(address)
        while True:
            try:
                command = decode_command(socket.recv())
            except zmq.ContextTerminated:
                return
            if isinstance(command, Refused):
                emit(command)
                continue
            if isinstance(command, Stop):
                stopping.set()
            commands.put(command)


def _loader(start: Start) -> Load:
    def load(progress: Progress) -> tuple[Runner, EngineInfo]:
        progress("loading", 0)
        # Imported here: this takes torch in, and a failure is to reach the client like any failure to load.
        module, _, name = start.loader.partition(":")
        return _call(getattr(import_module(module), name), start.config, progress)

    return load


def _call(function: object, config: EngineConfig, progress: Progress) -> tuple[Runner, EngineInfo]:
    if not callable(function):
        raise TypeError(f"the loader {function!r} cannot be called")
    runner, info = function(config, progress)
    return runner, info


def _read_start() -> bytes:
    size = int.from_bytes(_read_exactly(4), "little")
    return _read_exactly(size)


def _read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(LIFELINE_FD, size - len(data))
        if not piece:
            raise SystemExit("The client went away before it said what to load.")
        data += piece
    return data


def _follow_client(socket_dir: str) -> None:
    while os.read(LIFELINE_FD, 1024):
        pass
    # No clean-up beyond this: the GPU and the memory are freed with the process.
    shutil.rmtree(socket_dir, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
