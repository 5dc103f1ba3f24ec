"""What the server shows and writes while it starts: progress, the card, the ready line, the ready file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.status import Status
from rich.table import Table

from tamis.engine.client import Health
from tamis.engine.messages import EngineInfo
from tamis.server.config import ServerConfig
from tamis.version import __version__


class LoadingReport:
    """Loading progress on stderr: one moving line on a terminal, one line for each 10% elsewhere."""

    def __init__(self, console: Console):
        self._console = console
        self._status: Status | None = None
        self._last: tuple[str, int] = ("", -1)

    def show(self, health: Health) -> None:
        """Show where loading stands; to be called often."""
        tenth = health.percent // 10
        words = f"{health.stage.replace('_', ' ')} {health.percent}%"
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(words)
                self._status.start()
            self._status.update(words)
        elif (health.stage, tenth) != self._last:
            self._console.print(words, highlight=False, soft_wrap=True)
        self._last = (health.stage, tenth)

    def end(self) -> None:
        """Leave the terminal clean."""
        if self._status is not None:
            self._status.stop()
            self._status = None


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
        self._content = {"url": url, "port": port, "pid": os.getpid(), "model": model}

    def write(self, *, ready: bool) -> None:
        """Replace the file in one step, so that no reader sees half of it."""
        if self._path is None:
            return
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps({**self._content, "ready": ready}) + "\n")
        partial.replace(self._path)

    def remove(self) -> None:
        """Take the file away."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def stderr_console() -> Console:
    """A console on stderr; stdout carries the ready line only."""
    return Console(file=sys.stderr)
