from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tamis.errors import CheckpointError, InvalidRequestError
from tamis.frontend.tokenizer import Tokenizer


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder, tmp_path / "copy"))


def test_markers_in_trusted_text_become_single_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("]~b]user\nhi[e~[")
    assert ids[0] == tokenizer.added_tokens["]~b]"]
    assert ids[-1] == tokenizer.added_tokens["[e~["]
    assert ids.count(tokenizer.added_tokens["]~b]"]) == 1


def test_pieces_join_to_the_text_without_its_markers(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_pieces(["a]", "~b]b"])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a]~b]b"
    assert not set(ids) & tokenizer.special_ids


@pytest.mark.parametrize("text", ["", "hello", "naïve café", "日本語 👩‍👩‍👧", "\x00\n\t  x"])
def test_decode_inverts_encode(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_token_bytes_of_all_tokens_join_to_the_utf8_of_the_text(tokenizer: Tokenizer) -> None:
    text = "the thing is naïve 👍 ]~b]"
    assert b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode(text)) == text.encode()


def test_id_outside_the_vocabulary_has_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_media_placeholders_are_forbidden(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(i) for i in tokenizer.forbidden_ids] == [
        b"]<]image[>[",
        b"]<]video[>[",
        b"]<]start of image[>[",
        b"]<]end of image[>[",
    ]


def test_no_token_stands_for_more_characters_than_max_token_chars(tokenizer: Tokenizer) -> None:
    longest = tokenizer.max_token_chars
    assert longest == max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))


def test_lone_surrogate_is_named_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match=r"'\\ud800' at character 2"):
        tokenizer.encode("ab\ud800")


def test_saved_truncation_is_turned_off(folder: Path) -> None:
    path = folder / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(saved))
    assert len(Tokenizer.from_folder(folder).encode("0123456789")) == 10


@pytest.mark.parametrize(
    ("generation", "settings", "config", "expected"),
    [
        pytest.param({"eos_token_id": [7, 8]}, {}, {"eos_token_id": 5}, [7, 8], id="generation-config-first"),
        pytest.param({"eos_token_id": 7}, {"eos_token": "[e~["}, {}, [2, 7], id="joined-with-tokenizer-config"),
        pytest.param({}, {"eos_token": {"content": "[e~["}}, {}, [2], id="token-written-as-an-object"),
        pytest.param({}, {}, {"eos_token_id": 5}, [5], id="config"),
        pytest.param({}, {}, {"text_config": {"eos_token_id": 6}}, [6], id="text-config"),
        pytest.param({}, {}, {}, [2], id="end-of-turn-marker-by-text"),
    ],
)
def test_eos_ids_come_from(folder: Path, generation: dict, settings: dict, config: dict, expected: list[int]) -> None:
    for name, value in [("generation_config", generation), ("tokenizer_config", settings), ("config", config)]:
        (folder / f"{name}.json").write_text(json.dumps(value))
    assert Tokenizer.from_folder(folder).eos_token_ids == expected


def test_missing_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json\.$"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"model": 3}'], ids=["empty", "cut-off", "wrong-shape"])
def test_broken_tokenizer_is_one_line(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read") as caught:
        Tokenizer.from_folder(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[1]"], ids=["cut-off", "no-object"])
def test_broken_side_file_is_named(folder: Path, content: str) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        Tokenizer.from_folder(folder)


def test_threads_get_the_same_ids(tokenizer: Tokenizer) -> None:
    texts = [f"the thing number {i} ]~b]" for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == [tokenizer.encode(text) for text in texts]
