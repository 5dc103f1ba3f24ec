from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tamis.cli.main import main
from tamis.frontend.tokenizer import Tokenizer

REPLY = "hello 👍 world"


def test_json_is_one_object_alone_on_stdout(
    replies: Callable, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replies(REPLY)
    assert main(["generate", str(model_folder), "--prompt", "def add(a, b):", "--json", "--max-tokens", "64"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    tokenizer = Tokenizer.from_folder(model_folder)
    assert out.count("\n") == 1
    assert result["text"] == REPLY
    assert result["token_ids"] == [*tokenizer.encode(REPLY), *tokenizer.eos_token_ids]
    assert result["prompt_token_ids"] == tokenizer.encode("def add(a, b):")
    assert (result["model"], result["finish_reason"], result["stop_reason"]) == (str(model_folder), "stop", None)
    assert set(result["timing"]) == {"load_s", "ttft_s", "total_s", "tokens_per_s"}
    assert 0 <= result["timing"]["ttft_s"] <= result["timing"]["total_s"]
    assert err == "loading 100%\n"


def test_text_is_streamed_to_stdout_and_the_rest_to_stderr(
    replies: Callable, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replies(REPLY)
    assert main(["generate", str(model_folder), "--prompt", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{REPLY}\n"
    assert err.splitlines()[-1].endswith(" tokens/s")


@pytest.mark.parametrize(
    ("flags", "text", "finish", "stop"),
    [
        pytest.param(["--max-tokens", "1"], "h", "length", None, id="max-tokens"),
        pytest.param(["--stop", "👍", "--stop", "zz"], "hello ", "stop", "👍", id="stop"),
        pytest.param(["--ignore-eos", "--max-tokens", "70"], None, "length", None, id="ignore-eos"),
    ],
)
def test_sampling_flags_count(
    replies: Callable,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    text: str | None,
    finish: str,
    stop: str | None,
) -> None:
    replies(REPLY)
    assert main(["generate", str(model_folder), "--prompt", "hi", "--json", *flags]) == 0
    result = json.loads(capsys.readouterr().out)
    assert text is None or result["text"].startswith(text)
    assert (result["finish_reason"], result["stop_reason"]) == (finish, stop)


def test_chat_applies_the_template(replies: Callable, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies(REPLY)
    flags = ["--prompt", "hi", "--chat", "--system", "Be brief.", "--json"]
    assert main(["generate", str(model_folder), *flags]) == 0
    ids = json.loads(capsys.readouterr().out)["prompt_token_ids"]
    text = Tokenizer.from_folder(model_folder).decode(ids, skip_special_tokens=False)
    assert text.endswith("]~b]developer\nBe brief.[e~[\n]~b]user\nhi[e~[\n]~b]ai\n")


@pytest.mark.parametrize("form", [["--prompt", "-"], ["--prompt=-"]], ids=["space", "equals"])
def test_a_hyphen_reads_the_prompt_from_stdin(
    replies: Callable,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: list[str],
) -> None:
    replies(REPLY)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("naïve\n".encode())))
    assert main(["generate", str(model_folder), *form, "--json"]) == 0
    ids = json.loads(capsys.readouterr().out)["prompt_token_ids"]
    assert Tokenizer.from_folder(model_folder).decode(ids) == "naïve\n"


def test_stdin_that_is_not_utf8_is_refused(
    replies: Callable, model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies(REPLY)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"ab\xff")))
    assert main(["generate", str(model_folder), "--prompt", "-"]) == 2
    assert "byte 0xff at offset 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(["--prompt="], "The prompt has 0 tokens", id="empty"),
        pytest.param(
            ["--prompt", "x" * 1100], "The prompt has 1100 tokens, but this model's context is 1024", id="long"
        ),
        pytest.param(["--prompt", "x", "--temperature", "-1"], "temperature is -1.0, but must be from 0 to 2", id="t"),
        pytest.param(["--prompt", "x", "--max-tokens", "1024"], "max_tokens is 1024, 1025 together", id="sum"),
    ],
)
def test_a_bad_request_is_one_sentence(
    replies: Callable, model_folder: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    replies(REPLY)
    assert main(["generate", str(model_folder), *flags, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err.splitlines()[-1]


def test_engine_flags_reach_the_engine(replies: Callable, model_folder: Path) -> None:
    loaded = replies(REPLY)
    flags = ["--kv-cache-dtype", "nvfp4", "--seed", "3", "--threads", "1"]
    assert main(["generate", str(model_folder), "--prompt", "x", *flags]) == 0
    assert (loaded[0].kv_cache_dtype, loaded[0].seed, loaded[0].threads) == ("nvfp4", 3, 1)
