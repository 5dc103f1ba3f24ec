"""The server process: bind, load, announce, serve, drain, leave with the right exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator

import uvloop
from rich.console import Console

from tamis.config import EngineConfig
from tamis.errors import TamisError
from tamis.frontend.progress import ProgressReport
from tamis.server.config import ServerConfig
from tamis.server.http import Http
from tamis.server.listener import bind, url_of
from tamis.server.loading import MakeClient, load, served_name
from tamis.server.logs import configure_logging
from tamis.server.routes import build_app
from tamis.server.service import Served, Service
from tamis.server.startup import ReadyFile, card, exposure_warning, ready_line, stderr_console
from tamis.wire.client import RemoteClient

__all__ = ["build_app", "run_server"]

log = logging.getLogger("tamis.server")

POLL_S = 0.1
# After the engine has ended: for open requests to get their error, then for a supervisor to read the reason.
ERROR_DELIVERY_S = 2.0
DEAD_LINGER_S = 1.0
CLIENT_SHUTDOWN_S = 15.0


def run_server(config: EngineConfig, server: ServerConfig, *, make_client: MakeClient = RemoteClient) -> int:
    """Serve until a signal, and return the exit code.

    0 after SIGTERM or SIGINT and a drain; 1 when the engine died; the error's own code when start-up failed. Reasons
    are printed on stderr. A second signal ends the process at once, with 128 + signal.
    """
    console = stderr_console()
    try:
        with contextlib.closing(bind(server)) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            configure_logging(server)
            return runner.run(_ServerProcess(config, server, listener, console, make_client).main())
    except TamisError as error:
        console.print(f"error: {error.sentence()}", style="red", markup=False, highlight=False, soft_wrap=True)
        return error.exit_code


class _ServerProcess:
    def __init__(
        self,
        config: EngineConfig,
        server: ServerConfig,
        listener: socket.socket,
        console: Console,
        make_client: MakeClient,
    ):
        self._config = config
        self._server = server
        self._listener = listener
        self._console = console
        self._make_client = make_client
        self._url = url_of(listener)
        self._ready_file = ReadyFile(server.ready_file, self._url, listener.getsockname()[1], served_name(config))
        self._service = Service(server)
        self._stop = asyncio.Event()

    async def main(self) -> int:
        """Everything between bind and exit; raises the `TamisError` that start-up failed with."""
        http = Http(build_app(self._service))
        with self._signals():
            serving = asyncio.create_task(http.serve(sockets=[self._listener]))
            try:
                self._ready_file.write(ready=False)
                started_s = time.monotonic()
                served = await self._start()
                if served is None:
                    return 0  # told to stop while loading
                self._service.served = served
                self._ready_file.write(ready=True)
                self._announce(served, time.monotonic() - started_s)
                if await self._until_stop_or_death():
                    return await self._report_death()
                await self._drain()
                return await self._report_death() if self._service.health().stage == "dead" else 0
            finally:
                self._ready_file.remove()
                await self._shut_down_engine()
                http.should_exit = True
                await serving

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGTERM or SIGINT sets `_stop`; the second leaves at once, wherever the first one got to."""

        def on_signal(number: int) -> None:
            if not self._stop.is_set():
                self._stop.set()
                return
            self._ready_file.remove()
            logging.shutdown()
            sys.stdout.flush()
            # The engine process ends by itself when this one has gone.
            os._exit(128 + number)

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _start(self) -> Served | None:
        """Load, showing progress; None when told to stop meanwhile."""
        self._say(f"Listening on {self._url}, loading {served_name(self._config)}")
        if warning := exposure_warning(self._server):
            log.warning(warning)
        loading = asyncio.create_task(load(self._config, self._service, self._make_client))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            with ProgressReport(self._console) as report:
                while not (loading.done() or stopping.done()):
                    health = self._service.health()
                    report(health.stage, health.percent)
                    await asyncio.wait({loading, stopping}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            return loading.result() if loading.done() else None
        finally:
            loading.cancel()
            stopping.cancel()
            await asyncio.gather(loading, stopping, return_exceptions=True)

    def _announce(self, served: Served, seconds: float) -> None:
        self._console.print(card(served.name, served.info, self._url))
        print(ready_line(served.name, self._url, seconds), flush=True)

    async def _until_stop_or_death(self) -> bool:
        """Serve; True when the engine has died."""
        while not self._stop.is_set():
            if self._service.health().stage == "dead":
                return True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), POLL_S)
        return False

    async def _report_death(self) -> int:
        self._service.failure = self._service.health().reason or "The engine process has ended."
        log.error("The engine has stopped: %s", self._service.failure)
        await self._service.wait_idle(ERROR_DELIVERY_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), DEAD_LINGER_S)
        return 1

    async def _drain(self) -> None:
        """Refuse new requests and let running ones finish, up to the timeout."""
        self._service.draining = True
        timeout_s = self._server.drain_timeout_s
        if num := self._service.num_in_flight:
            self._say(
                f"Shutting down: {num} request{'s'[: num > 1]} may take up to {timeout_s:g} s to finish "
                "(signal again to end at once)"
            )
        else:
            self._say("Shutting down")
        await self._service.wait_idle(timeout_s)

    async def _shut_down_engine(self) -> None:
        """End the engine. Requests that still run end with an error, which is waited for."""
        if self._service.client is None:
            return
        try:
            await asyncio.wait_for(self._service.client.shutdown(), CLIENT_SHUTDOWN_S)
        except (TamisError, TimeoutError) as error:
            log.warning("The engine did not shut down cleanly: %s", str(error) or "it took too long")
        await self._service.wait_idle(ERROR_DELIVERY_S)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
