"""Progress on stderr: a bar on a terminal, one line for each 10% elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class ProgressReport:
    """Shows stages that run from 0 to 100 percent. A context manager, called with (stage, percent)."""

    def __init__(self, console: Console | None = None) -> None:
        # Here, so that a bare machine without rich can run the engine with no progress shown.
        from rich.console import Console

        self._console = console or Console(file=sys.stderr)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._tenth = -1

    def __enter__(self) -> ProgressReport:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
            # Gone once done: what stays on the terminal is the answer.
            self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
            self._bar.start()
        return self

    def __call__(self, stage: str, percent: int) -> None:
        """Say that `stage` is at `percent`."""
        words = stage.replace("_", " ")
        if self._bar is not None:
            if stage != self._stage or self._task is None:
                if self._task is not None:
                    self._bar.update(self._task, completed=100)  # a stage that others follow is over
                self._task = self._bar.add_task(words, total=100)
            self._bar.update(self._task, completed=percent)
        elif (stage, percent // 10) != (self._stage, self._tenth):
            self._console.print(f"{words} {percent}%", highlight=False, soft_wrap=True)
        self._stage, self._tenth = stage, percent // 10

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def no_progress(stage: str, percent: int) -> None:
    """Says nothing."""
