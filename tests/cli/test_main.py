"""Every command line ends with an exit code and, when it fails, one sentence on stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tamis
import tamis.cli.app
from tamis.cli.main import main
from tamis.errors import CheckpointError
from tamis.version import __version__


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("srve", 'Unknown command "srve". Did you mean "serve"?', id="command"),
        pytest.param("serve --max-modellen 5", "--max-modellen. Did you mean --max-model-len?", id="flag"),
        pytest.param(
            "serve --max-model-len many", 'Invalid value for --max-model-len: unable to convert "many"', id="int"
        ),
        pytest.param("serve --dtype fp64", 'Invalid value "fp64" for --dtype', id="choice"),
        pytest.param("serve --max-model-len", "--max-model-len requires an argument", id="no-value"),
        pytest.param("serve --port 1 --port 2", "--port specified multiple times", id="twice"),
        pytest.param("serve a b", "Unused Tokens: ['b']", id="surplus"),
        pytest.param("generate", "--prompt requires an argument", id="no-prompt"),
        pytest.param("serve --port 99999", "--port is 99999, but must be from 0 to 65535", id="server-value"),
        pytest.param("serve --max-num-seqs 0", "--max-num-seqs is 0, but must be at least 1", id="engine-value"),
        pytest.param("serve --hf-overrides {", "--hf-overrides is '{', which is not valid JSON", id="json"),
        pytest.param("serve --hf-overrides 3", "--hf-overrides is '3', but must be a JSON object", id="json-number"),
        pytest.param(
            'serve --attention-config {"indexer_dtype":"fp8"}',
            "'indexer_dtype' is no field of attention_config. Did you mean 'indexer_kv_dtype'?",
            id="json-field",
        ),
        pytest.param("generate /no/such --prompt x", "There is no folder /no/such.", id="model"),
        pytest.param("generate --prompt x --system y", "--system needs a chat. Add --chat.", id="system-without-chat"),
        pytest.param("chat --api-key x", "--api-key needs a server. Add --url.", id="key-without-url"),
        pytest.param("chat nano --url http://x", "--model is for a model in this process", id="model-and-url"),
        pytest.param("chat --url localhost:1", "--url is 'localhost:1', but must start with http", id="url"),
    ],
)
def test_a_wrong_line_is_one_sentence_and_exit_code_2(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("line", ["--help", "", "serve --help", "generate --help", "chat --help", "doctor --help"])
def test_help_goes_to_stdout(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 0
    assert "Usage: tamis" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        pytest.param(CheckpointError("Cut off.", hint="Copy it again."), 2, "Cut off. Copy it again.", id="ours"),
        pytest.param(
            RuntimeError("odd\nthing"), 1, "RuntimeError: odd thing (a bug; TAMIS_DEBUG=1 shows where)", id="bug"
        ),
    ],
)
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_a_failure_is_one_line_and_a_traceback_only_on_demand(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    line: str,
    debug: bool,
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(tamis.cli.app, "run", fail)
    monkeypatch.setenv("TAMIS_DEBUG", "1" if debug else "0")
    assert main([]) == code
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == f"error: {line}"
    assert ("Traceback" in err) == debug


def test_an_interruption_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(tamis.cli.app, "run", interrupt)
    assert main([]) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_left_gets_no_traceback() -> None:
    # The pipe's other end is closed before anything is written.
    script = f"{sys.executable} -m tamis serve --help | true"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=Path(tamis.__file__).parents[1]
    )
    assert done.stderr == ""


def test_importing_the_command_line_is_light() -> None:
    code = "import sys, tamis.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "fastapi", "cyclopts", "rich", "tokenizers", "msgspec"} & set(done.stdout.split())


@pytest.mark.parametrize("arguments", ["generate --prompt -", "chat"])
def test_a_closed_stdin_is_an_empty_one(arguments: str) -> None:
    script = f"{sys.executable} -m tamis {arguments} --max-model-len 8192 --num-gpu-blocks-override 70 --threads 1 <&-"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=Path(tamis.__file__).parents[1]
    )
    assert "a bug" not in done.stderr
    assert done.returncode == (2 if "-" in arguments.split() else 0)


def test_a_full_disk_is_no_bug() -> None:
    script = f"{sys.executable} -m tamis doctor --json > /dev/full"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=Path(tamis.__file__).parents[1]
    )
    assert done.stderr == "error: The output could not be written: No space left on device.\n"
    assert done.returncode == 1
