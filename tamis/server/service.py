"""What the routes share: the engine and its stage, the frontend once it is there, requests in flight."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tamis.engine.client import EngineClient, Health
from tamis.engine.messages import EngineInfo
from tamis.errors import EngineDeadError, NotFoundError, UnavailableError
from tamis.frontend.async_frontend import AsyncFrontend
from tamis.server.config import ServerConfig
from tamis.server.metrics import Metrics

LOADING_RETRY_AFTER_S = 5
DRAINING_RETRY_AFTER_S = 10


@dataclass(frozen=True)
class Served:
    """A loaded model.

    Attributes:
        name: under which the API lists it.
        info: of the engine.
        frontend: text to tokens and back.
        max_request_tokens: limit of prompts x n x max_tokens.
    """

    name: str
    info: EngineInfo
    frontend: AsyncFrontend
    max_request_tokens: int


class Service:
    """State of one server; belongs to one asyncio loop.

    `client` and `served` are None until start-up sets them; `failure` is set when the server has to stop for a
    reason that clients should see.
    """

    def __init__(self, config: ServerConfig):
        self.config = config
        self.client: EngineClient | None = None
        self.served: Served | None = None
        self.failure: str | None = None
        self.draining = False
        self.created = int(time.time())
        self.metrics = Metrics()
        self._num_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def health(self) -> Health:
        """The stage of the whole server: only "ready" answers requests."""
        if self.failure is not None:
            return Health(stage="dead", reason=self.failure)
        health = self.client.health() if self.client is not None else Health()
        if health.stage == "dead":
            return health
        if self.draining:
            return Health(stage="draining", percent=100)
        if health.stage == "ready" and self.served is None:
            return Health(stage="warming_up", percent=100)
        return health

    def ready(self) -> Served:
        """The served model.

        Raises:
            UnavailableError: loading or draining, with Retry-After.
            EngineDeadError: the engine has gone.
        """
        health = self.health()
        if health.stage == "ready" and self.served is not None:
            return self.served
        if health.stage == "dead":
            raise EngineDeadError(f"The engine has stopped: {health.reason or 'no reason is known'}")
        if health.stage == "draining":
            raise UnavailableError(
                "The server is shutting down.",
                code="draining",
                hint="Try another server, or this one later.",
                retry_after_s=DRAINING_RETRY_AFTER_S,
            )
        raise UnavailableError(
            f"The model is not ready: {health.stage}, {health.percent}%.",
            code="loading",
            hint="Ask /health until it answers 200.",
            retry_after_s=LOADING_RETRY_AFTER_S,
        )

    def model(self, name: str | None) -> Served:
        """The served model, asked for by `name`; None takes the only one there is.

        Raises:
            NotFoundError: another name.
            UnavailableError, EngineDeadError: as `ready`.
        """
        served = self.ready()
        if name is not None and name != served.name:
            close = difflib.get_close_matches(name[:200], [served.name], n=1)
            raise NotFoundError(
                f"The model {name[:200]!r} does not exist here.",
                param="model",
                code="model_not_found",
                hint=f"Did you mean {served.name!r}?" if close else f"This server has {served.name!r}.",
            )
        return served

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Counts a request that a drain waits for."""
        self._num_in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_in_flight -= 1
            if self._num_in_flight == 0:
                self._idle.set()

    @property
    def num_in_flight(self) -> int:
        """API requests that have not been answered whole."""
        return self._num_in_flight

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False when the timeout came first."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
