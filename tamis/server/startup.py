"""What the server shows and writes once it listens: the card, the ready line, the ready file."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from tamis.engine.messages import EngineInfo
from tamis.errors import ConfigError
from tamis.server.config import ServerConfig
from tamis.version import __version__


def card(name: str, info: EngineInfo, url: str) -> Panel:
    """The start-up card: the model, how it runs and why, what fits, where to ask."""
    tokens = info.num_blocks * info.block_size
    lines = {
        "model": name if info.model == name else f"{name} ({info.model})",
        "context": f"{info.max_model_len:,} tokens",
        "pool": f"{info.num_blocks:,} blocks = {tokens:,} tokens",
        # The engine's own lines, which say why; they win.
        **info.card,
        "concurrency": f"up to {info.max_num_seqs} requests and {info.max_num_batched_tokens:,} tokens a step",
        "API": f"{url}/v1",
        "health": f"{url}/health, {url}/metrics",
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for label, value in lines.items():
        grid.add_row(label.replace("_", " "), str(value))
    return Panel(grid, title=f"Tamis {__version__}", title_align="left", expand=False)


def ready_line(name: str, url: str, seconds: float) -> str:
    """The one line of stdout, for people and scripts."""
    return f"Tamis is ready: {url}/v1 serves {name} (started in {seconds:.1f} s)"


def exposure_warning(config: ServerConfig) -> str | None:
    """A sentence when other machines can use the server without a key, else None."""
    if config.is_loopback or config.api_key:
        return None
    return f"Anyone who reaches {config.host} can use this server: it has no --api-key."


class ReadyFile:
    """`--ready-file`: the URL as soon as the port is bound, `ready` once the model is; gone when the server is."""

    def __init__(self, path: str | None, url: str, port: int, model: str):
        self._path = None if path is None else Path(path)
        self._written = False
        self._content = {"url": url, "port": port, "pid": os.getpid(), "model": model}

    def write(self, *, ready: bool) -> None:
        """Replace the file in one step, so that no reader sees half of it.

        Raises:
            ConfigError: the path cannot be written.
        """
        if self._path is None:
            return
        try:
            partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
            try:
                partial.write_text(json.dumps({**self._content, "ready": ready}) + "\n")
                partial.replace(self._path)
            except OSError:
                _unlink(partial)
                raise
        except (OSError, ValueError) as error:  # ValueError: a path without a name, such as "/"
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"--ready-file {str(self._path)!r} cannot be written: {reason}.",
                param="ready_file",
                hint="Name a file in a folder that exists and may be written to.",
            ) from None
        self._written = True

    def remove(self) -> None:
        """Take the file away, if there is one of this process's."""
        if self._path is not None and self._written:
            _unlink(self._path)


def _unlink(path: Path) -> None:
    # The process is on its way out: its folder may be gone already, and its exit code matters more.
    with contextlib.suppress(OSError):
        path.unlink()


def stderr_console() -> Console:
    """A console on stderr; stdout carries the ready line only."""
    return Console(file=sys.stderr)
