"""The application: every route, its error handlers, the outermost layer."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from tamis.server import admin
from tamis.server.errors import on_http_exception
from tamis.server.middleware import Edge
from tamis.server.openai.chat import create_chat_completion
from tamis.server.openai.completions import create_completion
from tamis.server.openai.models import list_models, retrieve_model
from tamis.server.service import Service
from tamis.version import __version__


def build_app(service: Service) -> FastAPI:
    """The ASGI application over `service`, which it reads at each request: it may still be loading.

    Bodies are checked by `server.openai`, not by FastAPI, whose errors would not be OpenAI's; so there is no
    generated schema either.
    """
    app = FastAPI(title="Tamis", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Edge, service=service)
    app.add_exception_handler(HTTPException, on_http_exception)
    for path, endpoint in (
        ("/health", admin.health),
        ("/ping", admin.ping),
        ("/version", admin.version),
        ("/metrics", admin.metrics),
        ("/v1/models", list_models),
        ("/v1/models/{name:path}", retrieve_model),
    ):
        app.add_route(path, endpoint, methods=["GET"])
    app.add_route("/v1/chat/completions", create_chat_completion, methods=["POST"])
    app.add_route("/v1/completions", create_completion, methods=["POST"])
    return app
