"""`tamis quantize` on the command line: formats, sizes, what it says and where."""

from __future__ import annotations

import pytest

from tamis.cli.main import main
from tamis.cli.quantize import parse_size
from tamis.errors import ConfigError
from tamis.models.config import read_config
from tamis.models.tensor_schema import describe_formats
from tests.runner.small_checkpoint import write_plain


def test_a_folder_is_converted_and_a_second_run_keeps_it(tmp_path, capsys):
    source, out = write_plain(tmp_path / "source"), tmp_path / "out"
    (source / "weights.bin").write_bytes(b"old")
    command = ["quantize", str(source), str(out), "--format", "m3.1", "--shard-size", "100KB"]

    assert main(command) == 0

    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    tenths = [line for line in lines if line.startswith("converting")]
    assert tenths[-1] == "converting 100%" and len(tenths) <= 11
    assert any(f"files: {out}" in line for line in lines)
    assert "not copied: weights.bin" in lines
    assert describe_formats(read_config(out)) == "MXFP8, routed experts NVFP4"
    count = len(list(out.glob("*.safetensors")))
    assert count > 1

    assert main(command) == 0
    assert f"{count} of {count} files were finished before and are kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "int4"], "int4"),
        ([], "--format"),
        (["--format", "bf16", "--shard-size", "big"], "--shard-size is 'big'"),
        (["--format", "bf16", "--shard-sise", "1GB"], "--shard-sise"),
    ],
    ids=["format", "no-format", "size", "flag"],
)
def test_what_cannot_be_done_is_one_sentence_and_code_2(tmp_path, capsys, arguments, message):
    assert main(["quantize", str(tmp_path / "source"), str(tmp_path / "out"), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_names_that_no_folder_can_have(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write_plain(tmp_path / "source")
    assert main(["quantize", str(source), "", "--format", "bf16"]) == 2
    assert "FOLDER is empty" in capsys.readouterr().err
    assert main(["quantize", "/" + "a" * 300, str(tmp_path / "out"), "--format", "bf16"]) == 2
    assert "There is no folder /aaa" in capsys.readouterr().err


def test_an_interruption_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("tamis.runner.convert.convert", interrupted)
    assert main(["quantize", str(write_plain(tmp_path / "source")), str(tmp_path / "out"), "--format", "bf16"]) == 130
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500 MiB", 500 * 2**20), ("1000000", 10**6), ("1.5kb", 1500), ("2G", 2 * 10**9)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-5GB", "5TBB", "GB", "9" * 400])
def test_no_sizes(text):
    with pytest.raises(ConfigError, match="must be a size over 0"):
        parse_size(text)
