"""Server configuration: what `tamis serve` takes beyond `EngineConfig`. One frozen value, built once from flags."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass, field
from typing import Any, Literal

from tamis.errors import ConfigError

LOG_LEVELS = ("debug", "info", "warning", "error")


def _flag(default: Any, help: str, **kwargs: Any) -> Any:
    return field(default=default, metadata={"help": help, **kwargs})


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How the API is offered. Units are in the names.

    Raises:
        ConfigError: naming the flag, the value and the limit.
    """

    host: str = _flag("127.0.0.1", "Address to listen on.")
    port: int = _flag(8000, "Port to listen on; 0 takes a free one.")
    api_key: tuple[str, ...] = _flag((), "Key that clients must send as a bearer token; may be given several times.")
    max_body_bytes: int = _flag(8 * 1024 * 1024, "Largest request body.")
    max_request_tokens: int | None = _flag(
        None, "Most tokens one request may ask for, prompts * n * max_tokens; default: 16 times the context."
    )
    drain_timeout_s: float = _flag(30.0, "Seconds that running requests get to finish after SIGTERM or Ctrl-C.")
    ping_interval_s: float = _flag(10.0, "Seconds between comment lines of a stream that has no token to send.")
    log_level: Literal["debug", "info", "warning", "error"] = _flag("info", "Least severe message that is logged.")
    access_log: bool = _flag(False, "Log one JSON line a request.")
    ready_file: str | None = _flag(
        None, 'File that holds {"url", "port", "pid", "model", "ready"} as JSON while the server runs.'
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}, but must be from 0 to 65535.", param="port")
        for name in ("max_body_bytes", "max_request_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_spelled(name)} is {value}, but must be at least 1.", param=name)
        if not 0.0 <= self.drain_timeout_s <= 3600.0:
            raise ConfigError(
                f"--drain-timeout-s is {self.drain_timeout_s}, but must be from 0 to 3600 seconds.",
                param="drain_timeout_s",
            )
        if not 0.01 <= self.ping_interval_s <= 3600.0:
            raise ConfigError(
                f"--ping-interval-s is {self.ping_interval_s}, but must be from 0.01 to 3600 seconds.",
                param="ping_interval_s",
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(
                f"--log-level is {self.log_level!r}, but must be one of {', '.join(LOG_LEVELS)}.",
                param="log_level",
            )
        if any(not key.strip() for key in self.api_key):
            raise ConfigError("--api-key is empty.", param="api_key", hint="Leave it out to serve without a key.")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def replace(self, **changes: Any) -> ServerConfig:
        """A changed copy, checked again."""
        return dataclasses.replace(self, **changes)


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"
