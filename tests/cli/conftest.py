from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tamis.config import EngineConfig
from tamis.engine.messages import EngineInfo
from tamis.frontend.tokenizer import Tokenizer
from tests.frontend.scripted_runner import ScriptedRunner
from tests.frontend.tiny_tokenizer import write_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def replies(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[EngineConfig]]:
    """Make models in this process reply with a text; returns the configs with which they were loaded."""

    def reply_with(text: str) -> list[EngineConfig]:
        tokenizer = Tokenizer.from_folder(model_folder)
        loaded: list[EngineConfig] = []

        def load_engine(
            config: EngineConfig, progress: Callable[[str, int], None]
        ) -> tuple[ScriptedRunner, EngineInfo]:
            loaded.append(config)
            progress("loading", 100)
            info = EngineInfo(
                model=config.model,
                vocab_size=400,
                max_model_len=1024,
                num_blocks=64,
                block_size=128,
                max_num_seqs=4,
                max_num_batched_tokens=64,
            )
            return ScriptedRunner([*tokenizer.encode(text), *tokenizer.eos_token_ids]), info

        monkeypatch.setitem(sys.modules, "tamis.runner", SimpleNamespace(load_engine=load_engine))
        return loaded

    return reply_with
