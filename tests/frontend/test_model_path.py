from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from tamis.errors import CheckpointError
from tamis.frontend.model_path import resolve_model


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("/no/such/folder", "no folder /no/such/folder"),
        ("./nope", r"no folder \./nope"),
        ("a/b/c", "no folder a/b/c"),
        ("", "name is empty"),
    ],
)
def test_what_is_neither_folder_nor_hub_id_is_one_sentence(model: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        resolve_model(model)
    assert caught.value.exit_code == 2


def test_a_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_model(str(path))


@pytest.mark.parametrize(
    ("weights", "patterns"), [(True, ["*.json", "*.jinja", "*.safetensors"]), (False, ["*.json", "*.jinja"])]
)
def test_a_hub_id_is_downloaded_with_what_serving_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: bool, patterns: list[str]
) -> None:
    asked = []

    def download(hub_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((hub_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("owner/model", weights=weights) == tmp_path
    assert asked == [("owner/model", patterns)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalEntryNotFoundError("offline"), "hub cannot be reached"),
        (OSError("disk full\ntraceback"), "could not be downloaded from the hub: disk full$"),
    ],
    ids=["offline", "other"],
)
def test_hub_failures_are_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def fail(*args: object, **kwargs: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=words):
        resolve_model("owner/model")
