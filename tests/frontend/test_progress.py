from __future__ import annotations

import io

from rich.console import Console

from tamis.frontend.progress import ProgressReport


def test_a_terminal_gets_a_bar_that_is_gone_when_done() -> None:
    text = io.StringIO()
    with ProgressReport(Console(file=text, force_terminal=True, width=80)) as report:
        report("warming_up", 50)
    assert "warming up" in text.getvalue()
    assert text.getvalue().endswith("\x1b[2K")  # the line is erased


def test_elsewhere_there_is_one_line_for_each_tenth_of_a_stage() -> None:
    text = io.StringIO()
    with ProgressReport(Console(file=text)) as report:
        for stage in ("loading", "warming_up"):
            for percent in (0, 3, 55, 59, 100):
                report(stage, percent)
    lines = [f"{stage} {percent}%" for stage in ("loading", "warming up") for percent in (0, 55, 100)]
    assert text.getvalue().splitlines() == lines
