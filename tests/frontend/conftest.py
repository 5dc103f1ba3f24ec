from __future__ import annotations

from pathlib import Path

import pytest

from tamis.frontend.tokenizer import Tokenizer
from tests.frontend.tiny_tokenizer import write_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(model_folder)
