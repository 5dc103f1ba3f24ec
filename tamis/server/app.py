"""The server process: bind, load, announce, serve, drain, leave with the right exit code."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import uvloop
from rich.console import Console

from tamis.config import EngineConfig
from tamis.engine.client import EngineClient
from tamis.engine.messages import EngineInfo
from tamis.errors import CheckpointError, TamisError
from tamis.frontend.async_frontend import AsyncFrontend
from tamis.frontend.generation_config import sampling_defaults
from tamis.frontend.model_path import resolve_model
from tamis.frontend.template import ChatTemplate
from tamis.frontend.tokenizer import Tokenizer
from tamis.server.config import ServerConfig
from tamis.server.http import Http
from tamis.server.listener import bind, url_of
from tamis.server.logs import configure_logging
from tamis.server.routes import build_app
from tamis.server.service import Served, Service
from tamis.server.startup import LoadingReport, ReadyFile, card, exposure_warning, ready_line, stderr_console
from tamis.wire.client import RemoteClient

__all__ = ["build_app", "run_server"]

log = logging.getLogger("tamis.server")

T = TypeVar("T")
MakeClient = Callable[[EngineConfig], EngineClient]

POLL_S = 0.1
# After the engine has died: for open requests to get their error, then for a supervisor to read the reason.
ERROR_DELIVERY_S = 2.0
DEAD_LINGER_S = 1.0
CLIENT_SHUTDOWN_S = 10.0
REQUEST_LIMIT_CONTEXTS = 16


def run_server(config: EngineConfig, server: ServerConfig, *, make_client: MakeClient = RemoteClient) -> int:
    """Serve until a signal, and return the exit code.

    0 after SIGTERM or SIGINT and a drain; 128 + signal when a second signal cut the drain short; 1 when the engine
    died; the error's own code when start-up failed. Reasons are printed on stderr.
    """
    configure_logging(server)
    console = stderr_console()
    try:
        with contextlib.closing(bind(server)) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
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
        self._name = config.served_model_name or config.model
        self._url = url_of(listener)
        self._service = Service(server)
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def main(self) -> int:
        """Everything between bind and exit; raises the `TamisError` that start-up failed with."""
        http = Http(build_app(self._service))
        ready_file = ReadyFile(self._server.ready_file, self._url, self._listener.getsockname()[1], self._name)
        with self._signals() as received:
            serving = asyncio.create_task(http.serve(sockets=[self._listener]))
            try:
                ready_file.write(ready=False)
                if await self._start() is None:
                    return 0  # told to stop while loading
                ready_file.write(ready=True)
                if await self._until_stop_or_death():
                    return await self._report_death()
                if await self._drain():
                    return 0
                return 128 + received[-1]
            finally:
                ready_file.remove()
                await self._shut_down_engine()
                http.should_exit = True
                http.force_exit = self._stop_now.is_set()
                await serving

    @contextlib.contextmanager
    def _signals(self) -> Iterator[list[int]]:
        """The first SIGTERM or SIGINT sets `_stop`, the second `_stop_now`; yields the list of those received."""
        received: list[int] = []

        def on_signal(number: int) -> None:
            received.append(number)
            (self._stop_now if self._stop.is_set() else self._stop).set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        try:
            yield received
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _start(self) -> Served | None:
        """Load, showing progress; None when told to stop meanwhile."""
        started_s = time.monotonic()
        self._say(f"Listening on {self._url}, loading {self._name}")
        if warning := exposure_warning(self._server):
            log.warning(warning)
        report = LoadingReport(self._console)
        loading = asyncio.create_task(self._load())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not (loading.done() or stopping.done()):
                report.show(self._service.health())
                await asyncio.wait({loading, stopping}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                return None
            served = loading.result()
        finally:
            report.end()
            for task in (loading, stopping):
                task.cancel()
            await asyncio.gather(loading, stopping, return_exceptions=True)
        self._service.served = served
        self._console.print(card(served.name, served.info, self._url))
        print(ready_line(served.name, self._url, time.monotonic() - started_s), flush=True)
        return served

    async def _load(self) -> Served:
        config = self._config
        folder = await _in_daemon_thread(lambda: resolve_model(config.model, weights=config.load_format != "dummy"))
        client = self._service.client = self._make_client(config.replace(model=str(folder)))
        frontend = asyncio.create_task(asyncio.to_thread(self._load_frontend, client, str(folder)))
        info = asyncio.ensure_future(client.ready())
        try:
            # Whichever fails first ends the start: a missing tokenizer should not wait for the weights.
            done = await asyncio.gather(frontend, info)
        finally:
            info.cancel()
        return self._served(*done)

    def _load_frontend(self, client: EngineClient, folder: str) -> AsyncFrontend:
        model_folder = resolve_model(folder)
        text_folder = model_folder
        if self._config.tokenizer is not None:
            text_folder = resolve_model(self._config.tokenizer, weights=False, param="tokenizer")
        tokenizer = Tokenizer.from_folder(text_folder)
        return AsyncFrontend(
            client,
            tokenizer,
            ChatTemplate.from_folder(text_folder, tokenizer),
            sampling_defaults=sampling_defaults(model_folder),
        )

    def _served(self, frontend: AsyncFrontend, info: EngineInfo) -> Served:
        if frontend.tokenizer.vocab_size > info.vocab_size:
            raise CheckpointError(
                f"The tokenizer has {frontend.tokenizer.vocab_size} tokens, but the model only {info.vocab_size}.",
                param="tokenizer",
                hint="Use the tokenizer that belongs to the model.",
            )
        limit_tokens = self._server.max_request_tokens or REQUEST_LIMIT_CONTEXTS * info.max_model_len
        return Served(name=self._name, info=info, frontend=frontend, max_request_tokens=limit_tokens)

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

    async def _drain(self) -> bool:
        """Refuse new requests and let running ones finish; False when a second signal came first."""
        self._service.draining = True
        timeout_s = self._server.drain_timeout_s
        if self._service.num_in_flight:
            self._say(
                f"Shutting down: {self._service.num_in_flight} requests have {timeout_s:g} s to finish "
                "(signal again to end at once)"
            )
        idle = asyncio.create_task(self._service.wait_idle(timeout_s))
        now = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait({idle, now}, return_when=asyncio.FIRST_COMPLETED)
        for task in (idle, now):
            task.cancel()
        await asyncio.gather(idle, now, return_exceptions=True)
        return not self._stop_now.is_set()

    async def _shut_down_engine(self) -> None:
        """End the engine. Requests that still run end with an error, which is waited for unless in a hurry."""
        if self._service.client is None:
            return
        try:
            await asyncio.wait_for(self._service.client.shutdown(), CLIENT_SHUTDOWN_S)
        except (TamisError, TimeoutError) as error:
            log.warning("The engine did not shut down cleanly: %s", error or "it took too long")
        if not self._stop_now.is_set():
            await self._service.wait_idle(ERROR_DELIVERY_S)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


async def _in_daemon_thread(work: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but a download that hangs does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_result: Callable[..., None], value: object) -> None:
        if not result.done():
            set_result(value)

    def run() -> None:
        try:
            done = functools.partial(settle, result.set_result, work())
        except BaseException as error:
            done = functools.partial(settle, result.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(done)

    threading.Thread(target=run, name="resolve-model", daemon=True).start()
    return await result
