from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runner.small_checkpoint import convert_quietly, write_plain


@pytest.fixture(scope="session")
def plain_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bf16 checkpoint; not to be changed."""
    return write_plain(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def stored_in(plain_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The same checkpoint in a format by its name, converted once; not to be changed."""
    made: dict[str, Path] = {}

    def folder_of(target: str) -> Path:
        if target not in made:
            made[target] = tmp_path_factory.mktemp("stored") / target
            convert_quietly(plain_checkpoint, made[target], target)
        return made[target]

    return folder_of


@pytest.fixture
def copy_in(stored_in: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy in a format, to be changed."""

    def copy_of(target: str) -> Path:
        return Path(shutil.copytree(stored_in(target), tmp_path / "copy"))

    return copy_of
