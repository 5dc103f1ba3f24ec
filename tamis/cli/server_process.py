"""A Tamis server as a child process: started on a free port, awaited, and never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from tamis.errors import TamisError

POLL_S = 0.1
LOG_TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1


class ServerProcessError(TamisError):
    """The server did not start, did not stay or did not stop as it should; `log_tail` holds its last lines."""

    code = "server_failed"

    def __init__(self, message: str, log_tail: str):
        super().__init__(message)
        self.log_tail = log_tail


def serve_command(flags: Sequence[str] = ()) -> list[str]:
    """`tamis serve` of this interpreter and this installation, on a free port."""
    return [sys.executable, "-m", "tamis", "serve", *flags, "--port", "0"]


class ServerProcess:
    """Context manager around a server.

    Args:
        command: what to run; `--ready-file PATH` is appended.
        kill_after_s: how long a server may take to leave after SIGTERM before it is killed, when a fault or an
            interruption ends the block.

    Attributes:
        url: the server's root, e.g. "http://127.0.0.1:41231"; "" before `wait_ready`.
        exit_code: of the process once it has been stopped, else None.
    """

    def __init__(self, command: Sequence[str], *, kill_after_s: float = 10.0):
        self.url = ""
        self.exit_code: int | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tamis-")
        self._log = Path(self._folder.name) / "server.log"
        self._ready_file = Path(self._folder.name) / "ready.json"
        self._command = [*command, "--ready-file", str(self._ready_file)]
        self._kill_after_s = kill_after_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None, "use the server inside its with block"
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for us: the server is told by `stop`.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._process is not None and self.exit_code is None:
                self._end()
        finally:
            self._folder.cleanup()

    def wait_ready(self, on_stage: Callable[[str, int], None], timeout_s: float = 600.0) -> None:
        """Wait until the server answers requests.

        Args:
            on_stage: called with each new stage and percent while loading.
            timeout_s: seconds until the wait is given up.

        Raises:
            ServerProcessError: the server ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        last: tuple[str, int] | None = None
        while True:
            self._check_alive()
            stage = self._stage()
            if stage != last and stage[0] != "ready":
                on_stage(*stage)
                last = stage
            if stage[0] == "ready":
                return
            if time.monotonic() > deadline:
                raise ServerProcessError(f"The server was still {stage[0]} after {timeout_s:g} s.", self.log_tail())
            time.sleep(POLL_S)

    def stop(self, timeout_s: float = 60.0) -> None:
        """SIGTERM, then wait: the server drains and must leave with exit code 0.

        Raises:
            ServerProcessError: it had already ended, did not end in time, or ended with another exit code.
        """
        self._check_alive()
        assert self._process is not None
        self._process.terminate()
        try:
            self.exit_code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._end()
            raise ServerProcessError(f"The server did not stop within {timeout_s:g} s.", self.log_tail()) from None
        if self.exit_code != 0:
            raise ServerProcessError(f"The server stopped with exit code {self.exit_code}.", self.log_tail())

    def log_tail(self) -> str:
        """The last lines that the server printed."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _check_alive(self) -> None:
        assert self._process is not None, "use the server inside its with block"
        code = self._process.poll()
        if code is not None:
            self.exit_code = code
            raise ServerProcessError(f"The server ended by itself with exit code {code}.", self.log_tail())

    def _stage(self) -> tuple[str, int]:
        """Stage and percent from /health; "starting" until the port is known and answers."""
        if not self.url:
            try:
                self.url = str(json.loads(self._ready_file.read_text())["url"]).rstrip("/")
            except (OSError, ValueError, KeyError):  # not there yet, or half written
                return "starting", 0
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                response.read()
            return "ready", 100
        except urllib.error.HTTPError as error:
            with contextlib.suppress(ValueError):
                health = json.loads(error.read())
                return str(health.get("stage", "loading")), int(health.get("percent", 0))
            return "loading", 0
        except OSError:
            return "starting", 0

    def _end(self) -> None:
        """Make sure that nothing runs on: politely, then not."""
        assert self._process is not None
        self._process.terminate()
        try:
            self.exit_code = self._process.wait(self._kill_after_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.exit_code = self._process.wait()


def _die_with_parent() -> None:
    # Runs in the child before exec: even `kill -9` of the parent then ends the server (with SIGTERM, so it drains).
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
