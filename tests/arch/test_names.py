"""Names, docstrings and documented variables: what a reader of the tree relies on."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.arch.imports import PACKAGE, ROOT, module_name, sources

# Names that say nothing about what is inside.
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "stuff", "manager", "base_manager"}


def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sources()]


def public_definitions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def test_no_file_or_folder_has_an_empty_name() -> None:
    named = [path for path in PACKAGE.rglob("*") if path.stem in EMPTY_NAMES]

    assert not named, f"name these after what they hold: {[str(path.relative_to(ROOT)) for path in named]}"


def test_every_module_says_what_it_is() -> None:
    silent = [module_name(path) for path, tree in trees() if tree.body and ast.get_docstring(tree) is None]

    assert not silent, f"no module docstring: {silent}"


def test_public_functions_and_classes_have_docstrings() -> None:
    silent = [
        f"{module_name(path)}.{node.name}"
        for path, tree in trees()
        for node in public_definitions(tree)
        if ast.get_docstring(node) is None
    ]

    assert not silent, f"no docstring: {silent}"


@pytest.mark.parametrize("folder", ["tamis", "benchmarks", "tests"])
def test_variables_that_are_read_are_documented(folder: str) -> None:
    """Every TAMIS_… variable, and every variable that the package reads, stands in docs/env.md."""
    documented = set(re.findall(r"`([A-Z][A-Z0-9_]+)", (ROOT / "docs" / "env.md").read_text()))
    read = re.compile(
        r"""(?:environ(?:\.get\(|\.setdefault\(|\[)|getenv\()\s*["']([A-Z][A-Z0-9_]+)["']|\b(TAMIS_[A-Z_]+)\b"""
    )
    files = [path for path in (ROOT / folder).rglob("*.py") if path.name != Path(__file__).name]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)

    undocumented = {name for match in read.findall(text) for name in match if name} - documented

    assert not undocumented, f"read under {folder} but not in docs/env.md: {sorted(undocumented)}"
