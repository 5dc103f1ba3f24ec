from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.harness import write_tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with everything that text needs, and no weights."""
    folder = tmp_path_factory.mktemp("fake-model")
    write_tokenizer(folder)
    return folder
