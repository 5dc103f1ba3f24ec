"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tamis.server.service import Served, Service


async def list_models(request: Request) -> Response:
    """The one model that is served."""
    service: Service = request.app.state.service
    return _json({"object": "list", "data": [_card(service.ready(), service)]})


async def retrieve_model(request: Request) -> Response:
    """A model by name, which may hold slashes; 404 when it is not served."""
    service: Service = request.app.state.service
    return _json(_card(service.model(request.path_params["name"]), service))


def _card(served: Served, service: Service) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": service.created,
        "owned_by": "tamis",
        "root": served.info.model,
        "max_model_len": served.info.max_model_len,
    }


def _json(value: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
