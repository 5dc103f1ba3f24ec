"""`tamis doctor`: the report in both forms, its exit code, and each check's bad news."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tamis.cli import health_checks
from tamis.cli.doctor import run
from tamis.cli.health_checks import Finding
from tamis.errors import CheckpointError
from tamis.kernels import cpu_extension
from tamis.kernels.cpu_extension import Extension


def good() -> Finding:
    return Finding("good", "ok", "as it should be")


def lesser() -> Finding:
    return Finding("lesser", "note", "slow [but] there", "Do this.")


def bad() -> Finding:
    return Finding("bad", "fail", "not there", "Do that.")


def crashing_check() -> Finding:
    raise OSError("disk on\nfire")


@pytest.mark.parametrize(
    ("checks", "code"),
    [([good], 0), ([good, lesser], 0), ([good, bad], 1), ([crashing_check], 1)],
    ids=["all good", "a note still serves", "a fail does not", "a crash does not"],
)
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "table"])
def test_exit_code(
    checks: list[Callable[[], Finding]], code: int, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(as_json, checks) == code


def test_json_is_one_object_with_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    run(True, [good, bad, crashing_check])

    report = json.loads(capsys.readouterr().out)
    assert report["servable"] is False
    assert [check["status"] for check in report["checks"]] == ["ok", "fail", "fail"]
    assert report["checks"][1] == {
        "name": "bad",
        "status": "fail",
        "value": "not there",
        "hint": "Do that.",
        "details": {},
    }
    assert report["checks"][2]["name"] == "crashing check"
    assert report["checks"][2]["value"] == "cannot be checked: OSError: disk on fire"


def test_table_shows_values_and_hints_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    run(False, [lesser])

    out = capsys.readouterr().out
    assert "slow [but] there" in out
    assert "Do this." in out
    assert "Ready to serve." in out


@pytest.mark.parametrize("check", [c for c in health_checks.CHECKS if c is not health_checks.bundled_model])
def test_this_machine_which_runs_the_tests_can_serve(check: Callable[[], Finding]) -> None:
    finding = check()

    assert finding.status != "fail", finding
    assert finding.value
    json.dumps(finding.details)


def test_the_bundled_model_is_intact() -> None:
    finding = health_checks.bundled_model()

    assert finding.status == "ok", finding
    assert finding.details["tensors"] > 0


def test_kernels_names_every_operation_with_its_implementation() -> None:
    choices = {choice["op"]: choice for choice in health_checks.kernels().details["choices"]}

    assert {"nvfp4", "topk_blocks", "sparse_attention", "index_score"} <= choices.keys()
    assert all(choice["implementation"] and choice["source"] for choice in choices.values())


def test_kernels_says_why_one_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"op": "nvfp4", "implementation": "torch", "source": "cpu.py", "refused": {"native": "no compiler."}}
    monkeypatch.setattr("tamis.kernels.registry.explain", lambda device: [refused])

    finding = health_checks.kernels()

    assert finding.value == "torch: nvfp4"
    assert finding.hint == "nvfp4 native is not used: no compiler."


@pytest.mark.parametrize("has_compiler", [True, False], ids=["compiler", "no compiler"])
def test_a_missing_extension_names_the_way_to_get_it(has_compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_extension, "load", lambda: Extension(None, "Installed without it."))
    monkeypatch.setattr(health_checks, "compiler", lambda: Finding("compiler", "ok" if has_compiler else "note", "?"))

    finding = health_checks.extension()

    assert finding.status == "note"
    assert finding.value == "Installed without it. Torch does its work."
    assert finding.hint is not None
    assert ("apt-get install g++" in finding.hint) is not has_compiler
    assert "pip install" in finding.hint


def test_no_compiler_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks.shutil, "which", lambda name: None)

    finding = health_checks.compiler()

    assert finding.status == "note"
    assert "only the extension needs it" in str(finding.hint)


def test_a_compiler_that_fails_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess(["c++"], 1, "", "broken")
    monkeypatch.setattr(health_checks.subprocess, "run", lambda *args, **kwargs: failed)

    assert health_checks.compiler().status == "note"


def test_a_missing_dependency_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = ["torch>=2.11", "no-such-package>=1", 'pytest; extra == "test"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: declared)

    finding = health_checks.dependencies()

    assert finding.status == "fail"
    assert finding.value == "missing: no-such-package"
    assert finding.hint == "Run: pip install no-such-package"
    assert finding.details.keys() == {"torch", "no-such-package"}


def test_a_broken_bundled_model_is_a_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(model: str) -> Path:
        raise CheckpointError("config.json is missing.")

    monkeypatch.setattr("tamis.frontend.model_path.resolve_model", missing)

    finding = health_checks.bundled_model()

    assert (finding.status, finding.value) == ("fail", "config.json is missing.")


def test_little_memory_is_a_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.planner.memory.available_host_bytes", lambda: 300 << 20)

    finding = health_checks.memory()

    assert finding.status == "fail"
    assert finding.value == "0.3 GiB available"
