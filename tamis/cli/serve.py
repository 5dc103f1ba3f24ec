"""`tamis serve`: the OpenAI API over one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.server.config import ServerConfig


def serve(engine: Mapping[str, Any], server: Mapping[str, Any]) -> int:
    """Serve until stopped; returns the exit code.

    Args:
        engine: fields of `EngineConfig`.
        server: fields of `ServerConfig`.
    """
    from tamis.frontend.engine_args import build_config

    # Checked before the server's libraries are imported: a wrong flag answers at once.
    engine_config, server_config = build_config(engine), ServerConfig(**server)
    from tamis.server.app import run_server

    return run_server(engine_config, server_config)
