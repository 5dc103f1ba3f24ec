"""Logging of the server process: `tamis.*` to stderr, access lines as bare JSON, nothing from uvicorn."""

from __future__ import annotations

import logging

from tamis.server.config import ServerConfig


def configure_logging(config: ServerConfig) -> None:
    """Set up the loggers once, at the start of the process."""
    _configure("tamis", "%(asctime)s %(levelname)s %(message)s", config.log_level.upper())
    _configure("tamis.access", "%(message)s", "INFO")
    # It would repeat what is handled here already, tracebacks of cancelled requests included.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)


def _configure(name: str, format: str, level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(format))
    logger = logging.getLogger(name)
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
