"""An engine in a process of its own: started, spoken to, watched and buried from here.

Three threads of this process serve the child: one takes its events, one passes its output on to stderr (and keeps
the last line for the obituary), one waits for its end.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable

import zmq

from tamis.config import EngineConfig
from tamis.engine.event_client import EventClient
from tamis.engine.loop import STOPPED
from tamis.engine.protocol import Command
from tamis.wire.messages import Start, decode_event, encode

LOADER = "tamis.runner:load_engine"
STOP_GRACE_S = 10.0
LOAD_STOP_GRACE_S = 1.0
LAST_WORDS_MS = 200
MAX_SOCKET_DIR_BYTES = 90


class RemoteClient(EventClient):
    """`EngineClient` over a child process, which starts at once.

    Args:
        config: what to load.
        loader: "module:function" in the child, `(EngineConfig, progress) -> (Runner, EngineInfo)`.
    """

    def __init__(self, config: EngineConfig, *, loader: str = LOADER):
        super().__init__()
        self._socket_dir = _make_socket_dir()
        # Also when the interpreter ends without shutdown(). A client that is merely dropped lives on in its threads.
        self._remove_socket_dir = weakref.finalize(self, shutil.rmtree, self._socket_dir, ignore_errors=True)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands = self._context.socket(zmq.PUSH)
        self._events = self._context.socket(zmq.PULL)
        start = Start(
            config=config,
            loader=loader,
            socket_dir=self._socket_dir,
            command_address=f"ipc://{self._socket_dir}/commands",
            event_address=f"ipc://{self._socket_dir}/events",
        )
        for socket, address in ((self._commands, start.command_address), (self._events, start.event_address)):
            socket.set_hwm(0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(address)
        self._process = _spawn(start)
        self._last_lines: collections.deque[str] = collections.deque(maxlen=1)
        self._ended_r, self._ended_w = os.pipe()
        self._output_thread = _start_thread("tamis-output", self._pass_output_on)
        _start_thread("tamis-wait", self._wait_for_end)
        self._event_thread = _start_thread("tamis-events", self._receive)

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def _send(self, command: Command) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._commands.send(encode(command), zmq.NOBLOCK)

    async def _join(self) -> None:
        grace_s = STOP_GRACE_S if self._info.done() else LOAD_STOP_GRACE_S
        await asyncio.to_thread(self._bury, grace_s)

    def _bury(self, grace_s: float) -> None:
        self._event_thread.join(grace_s)
        if self._event_thread.is_alive():
            self._process.kill()
            self._event_thread.join()
        self._commands.close()
        self._context.term()
        if self._process.stdin is not None:
            self._process.stdin.close()

    # On the threads.

    def _receive(self) -> None:
        """Events until the child has ended and nothing of what it said is left."""
        poller = zmq.Poller()
        poller.register(self._events, zmq.POLLIN)
        poller.register(self._ended_r, zmq.POLLIN)
        ended = False
        while True:
            ready = dict(poller.poll(LAST_WORDS_MS if ended else None))
            if self._events in ready:
                event = decode_event(self._events.recv())
                if event is not None:
                    self._on_event(event)
            elif ended:
                break
            elif self._ended_r in ready:
                ended = True
                poller.unregister(self._ended_r)
        self._output_thread.join(LAST_WORDS_MS / 1000)
        self._events.close()
        os.close(self._ended_r)
        os.close(self._ended_w)
        self._remove_socket_dir()
        self._on_death(self._obituary())

    def _wait_for_end(self) -> None:
        self._process.wait()
        os.write(self._ended_w, b"\0")

    def _pass_output_on(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            for line in output:
                text = line.decode("utf-8", "replace")
                if text.strip():
                    self._last_lines.append(text.strip())
                sys.stderr.write(text)
                sys.stderr.flush()

    def _obituary(self) -> str:
        code = self._process.returncode
        if code == 0:
            return STOPPED
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        last = f"; its last line was: {self._last_lines[0]}" if self._last_lines else "."
        return f"The engine process {how}{last}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _make_socket_dir() -> str:
    """A new folder that only this user may enter, short enough for a socket's path (107 bytes)."""
    path = tempfile.mkdtemp(prefix="tamis-")
    if len(os.fsencode(path)) <= MAX_SOCKET_DIR_BYTES:
        return path
    os.rmdir(path)
    return tempfile.mkdtemp(prefix="tamis-", dir="/tmp")


def _start_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _spawn(start: Start) -> subprocess.Popen[bytes]:
    # A plain child, not multiprocessing's: that would import the caller's main module again. -P and PYTHONPATH: the
    # child finds modules exactly where this process does, and not in whatever folder it happens to stand in.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tamis.wire.engine_process"],
        stdin=subprocess.PIPE,
        # Standard output may carry a command's result; nothing of the engine belongs there.
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        # Out of the terminal's foreground group, so that Ctrl-C reaches the parent only, even while Python starts.
        process_group=0,
    )
    frame = encode(start)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        # Stays open: the child takes its end for the death of this process.
        process.stdin.write(len(frame).to_bytes(4, "little") + frame)
        process.stdin.flush()
    return process
