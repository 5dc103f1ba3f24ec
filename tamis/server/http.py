"""uvicorn, set up for this server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

# Clients reuse connections; ours must not be the side that closes an idle one under a request on its way.
KEEP_ALIVE_S = 75
# What is still open when the server ends has had its drain already.
CLOSE_S = 2


class Http(uvicorn.Server):
    """uvicorn without its own signal handling: signals belong to the process, which drains first.

    `app` is an ASGI application without lifespan.
    """

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the process's handlers in place."""
        yield
