"""Routes for operators: /health, /ping, /version, /metrics. None of them needs a key."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tamis.errors import TamisError
from tamis.server.metrics import CONTENT_TYPE
from tamis.server.service import LOADING_RETRY_AFTER_S, Service
from tamis.version import __version__

# A scrape must not hang with the engine; it then shows the last known numbers and tamis:engine_up 0.
STATS_TIMEOUT_S = 2.0


async def health(request: Request) -> Response:
    """200 when requests are served, else 503; always `{"status", "stage", "percent"}`, and `reason` when dead.

    `status` is "ok", "loading", "draining" or "dead".
    """
    service: Service = request.app.state.service
    now = service.health()
    status = {"ready": "ok", "draining": "draining", "dead": "dead"}.get(now.stage, "loading")
    body: dict[str, Any] = {"status": status, "stage": now.stage, "percent": 100 if status == "ok" else now.percent}
    if now.stage == "dead":
        body["reason"] = now.reason
    headers = {"cache-control": "no-store"}
    if status == "loading":
        headers["retry-after"] = str(LOADING_RETRY_AFTER_S)
    return Response(
        msgspec.json.encode(body),
        status_code=200 if status == "ok" else 503,
        headers=headers,
        media_type="application/json",
    )


async def ping(request: Request) -> Response:
    """The status of /health without a body, as SageMaker asks for it."""
    service: Service = request.app.state.service
    return Response(status_code=200 if service.health().stage == "ready" else 503)


async def version(request: Request) -> Response:
    """`{"version"}` of Tamis."""
    return Response(msgspec.json.encode({"version": __version__}), media_type="application/json")


async def metrics(request: Request) -> Response:
    """Prometheus text, with engine numbers at most one step old."""
    service: Service = request.app.state.service
    engine = service.metrics.engine
    engine.up = False
    if service.client is not None and service.served is not None and service.health().stage != "dead":
        try:
            stats = await asyncio.wait_for(service.client.stats(), STATS_TIMEOUT_S)
        except (TamisError, TimeoutError):
            pass
        else:
            engine.up = True
            engine.update(service.served.name, stats)
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)
