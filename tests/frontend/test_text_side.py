from __future__ import annotations

import json
from pathlib import Path

import pytest

from tamis.config import EngineConfig
from tamis.errors import CheckpointError, TamisError
from tamis.frontend.text_side import load_text_side


def test_everything_comes_from_the_model_s_folder(model_folder: Path) -> None:
    text = load_text_side(EngineConfig(model=str(model_folder)), model_folder)
    assert (text.tokenizer.folder, text.template.name) == (model_folder, "built-in minimax_m3.jinja")
    assert text.sampling_defaults == {"temperature": 0.7, "top_k": 40}


def test_another_tokenizer_brings_its_template_but_not_its_sampling(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.1}))
    text = load_text_side(EngineConfig(tokenizer=str(model_folder)), tmp_path)
    assert text.tokenizer.folder == model_folder.resolve()
    assert text.sampling_defaults == {"temperature": 0.1}
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        load_text_side(EngineConfig(), tmp_path)


def test_a_tokenizer_that_is_nowhere_is_named(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TamisError, match="nowhere") as caught:
        load_text_side(EngineConfig(tokenizer=str(tmp_path / "nowhere")), model_folder)
    assert caught.value.param == "tokenizer"
