"""From flags to a served model: folder, engine process, tokenizer and template, side by side."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tamis.config import EngineConfig
from tamis.engine.client import EngineClient
from tamis.engine.messages import EngineInfo
from tamis.frontend.async_frontend import AsyncFrontend
from tamis.frontend.model_path import resolve_model
from tamis.frontend.text_side import load_text_side
from tamis.server.service import Served, Service

T = TypeVar("T")

MakeClient = Callable[[EngineConfig], EngineClient]

# Default limit of the tokens that one request may ask for.
REQUEST_LIMIT_CONTEXTS = 16


async def load(config: EngineConfig, service: Service, make_client: MakeClient) -> Served:
    """Load what `config` names. `service.client` is set as soon as the engine starts, so that its stage shows.

    Raises:
        TamisError: the first thing that failed; the engine may then still be loading, and is the caller's to end.
    """
    folder = await in_daemon_thread(lambda: resolve_model(config.model, weights=config.load_format != "dummy"))
    client = service.client = make_client(config.replace(model=str(folder)))
    frontend = asyncio.ensure_future(in_daemon_thread(lambda: _load_frontend(config, client, folder)))
    info = asyncio.ensure_future(client.ready())
    try:
        # Whichever fails first ends the start: a missing tokenizer should not wait for the weights.
        return _served(config, service, *await asyncio.gather(frontend, info))
    finally:
        frontend.cancel()
        info.cancel()


def served_name(config: EngineConfig) -> str:
    """The name under which the API lists the model."""
    return config.served_model_name or config.model


def _load_frontend(config: EngineConfig, client: EngineClient, folder: Path) -> AsyncFrontend:
    text = load_text_side(config, folder)
    return AsyncFrontend(client, text.tokenizer, text.template, sampling_defaults=text.sampling_defaults)


def _served(config: EngineConfig, service: Service, frontend: AsyncFrontend, info: EngineInfo) -> Served:
    frontend.tokenizer.check_fits(info.vocab_size)
    limit_tokens = service.config.max_request_tokens or REQUEST_LIMIT_CONTEXTS * info.max_model_len
    return Served(name=served_name(config), info=info, frontend=frontend, max_request_tokens=limit_tokens)


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but a download that hangs does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[..., None], outcome: object) -> None:
        if not result.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            done = functools.partial(settle, result.set_result, work())
        except BaseException as error:
            done = functools.partial(settle, result.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(done)

    threading.Thread(target=run, name="tamis-load", daemon=True).start()
    return await result
