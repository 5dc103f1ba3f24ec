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


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": "high"}, "top_p"),
        ({"top_k": 20.5}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"max_new_tokens": 512.5}, "max_new_tokens"),
        ({"max_new_tokens": 1e300}, "max_new_tokens"),
    ],
)
def test_a_value_no_request_could_ask_for_names_file_and_key(tmp_path: Path, values: dict, key: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: ") as caught:
        sampling_defaults(tmp_path)
    assert caught.value.param == key and key in caught.value.sentence()


def test_integers_may_be_spelt_as_floats(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": 20.0, "max_new_tokens": 512.0}')
    defaults = sampling_defaults(tmp_path)
    assert defaults == {"top_k": 20, "max_tokens": 512}
    assert {type(value) for value in defaults.values()} == {int}
