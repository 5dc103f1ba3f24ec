from __future__ import annotations

import json
from pathlib import Path

import pytest

from tamis.errors import CheckpointError
from tamis.frontend.generation_config import sampling_defaults


def test_without_the_file_there_are_no_defaults(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}


def test_known_fields_are_taken_and_null_means_unset(tmp_path: Path) -> None:
    values = {"temperature": 1.0, "top_p": 0.95, "top_k": 40, "max_new_tokens": 64, "min_p": None, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert sampling_defaults(tmp_path) == {"temperature": 1.0, "top_p": 0.95, "top_k": 40, "max_tokens": 64}


@pytest.mark.parametrize("values", [{"temperature": -1}, {"top_p": "high"}], ids=["range", "type"])
def test_a_value_no_request_could_ask_for_names_the_file(tmp_path: Path, values: dict) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: "):
        sampling_defaults(tmp_path)
