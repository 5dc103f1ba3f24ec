"""The listening socket, bound before anything slow begins."""

from __future__ import annotations

import errno
import os
import socket

from tamis.errors import ConfigError
from tamis.server.config import ServerConfig

BACKLOG = 2048


def bind(config: ServerConfig) -> socket.socket:
    """Bind and listen; clients that connect from now on wait for an answer instead of being refused.

    Raises:
        ConfigError: the port is taken or not allowed, the host is unknown.
    """
    try:
        addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(
            f"--host {config.host!r} is not an address of this machine: {error.strerror}.", param="host"
        ) from None
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for the last connections' TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = {
            errno.EADDRINUSE: "Another program listens there: choose another --port, or 0 for a free one.",
            errno.EACCES: "Choose a --port over 1023.",
            errno.EADDRNOTAVAIL: "Choose a --host that this machine has, such as 127.0.0.1 or 0.0.0.0.",
        }.get(error.errno or 0)
        raise ConfigError(f"Cannot listen on {config.host}:{config.port}: {reason}.", param="port", hint=hint) from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL at which this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"
