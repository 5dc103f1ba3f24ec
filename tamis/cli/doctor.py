"""`tamis doctor`: can this machine serve, with which kernels, and what is missing."""

from __future__ import annotations

import dataclasses
import json as json_text
from collections.abc import Callable, Iterable

from tamis.cli.health_checks import CHECKS, Finding
from tamis.version import __version__

_SIGNS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fail": "[red]fail[/]"}


def run(json: bool, checks: Iterable[Callable[[], Finding]] = CHECKS) -> int:
    """Run the checks and print what they found.

    Args:
        json: print one JSON object `{"servable", "version", "checks": [{name, status, value, hint, details}]}`
            instead of a table.
        checks: what to run.

    Returns:
        Exit code: 0 when nothing keeps Tamis from serving, else 1.
    """
    findings = [_find(check) for check in checks]
    servable = all(finding.status != "fail" for finding in findings)
    if json:
        report = {"servable": servable, "version": __version__, "checks": [dataclasses.asdict(f) for f in findings]}
        print(json_text.dumps(report))
    else:
        _print_table(findings, servable)
    return 0 if servable else 1


def _find(check: Callable[[], Finding]) -> Finding:
    # A broken installation may break the looking too: that is a finding, not a crash.
    try:
        return check()
    except Exception as error:
        name = check.__name__.replace("_", " ")
        return Finding(name, "fail", f"cannot be checked: {type(error).__name__}: {' '.join(str(error).split())}")


def _print_table(findings: list[Finding], servable: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(_SIGNS[finding.status], finding.name, escape(finding.value))
        if finding.hint:
            table.add_row("", "", f"[dim]{escape(finding.hint)}[/]")
    console = Console()
    console.print(f"Tamis {__version__}", highlight=False)
    console.print(table, highlight=False)
    console.print("Ready to serve." if servable else "Not ready: see the lines marked fail.", highlight=False)
