"""The whole road on a model that knows nothing, and the questions that are asked on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tamis.bench.eval import evaluate, table
from tamis.bench.eval_config import EvalConfig
from tamis.bench.perplexity import CHUNK_TOKENS, text_loss
from tamis.bench.questions import ALL, chosen_skills, needle_questions, plain_questions
from tamis.cli.main import main
from tamis.config import EngineConfig
from tamis.errors import ConfigError
from tamis.runner import load_engine
from tamis.train.skills import SKILLS

ROOT = Path(__file__).parents[2]
# What `pip install` brings to a server, and a bare GPU machine does not have.
ABSENT = "cyclopts rich zmq fastapi uvicorn huggingface_hub pydantic matplotlib transformers openai triton"


def config(toy: Path, **changes: Any) -> EvalConfig:
    values = {"model": str(toy), "load_format": "dummy", "items": 3, "perplexity_tokens": 300, "threads": 1}
    return EvalConfig(**{**values, **changes})


def test_every_kind_of_question_runs_end_to_end(toy: Path) -> None:
    lines: list[str] = []
    skills = "needle_2k,needle_64k,tool_call,python_function,sorting_thinking,python"

    report = evaluate(config(toy, skills=skills, show_wrong=1), lines.append)

    assert list(report["skills"]) == ["needle_2k", "tool_call", "python_function", "sorting_thinking"]
    assert all(found["total"] == 3 and 0 <= found["right"] <= 3 for found in report["skills"].values())
    assert "context has 8192" in report["left_out"]["needle_64k"]
    needles = report["skills"]["needle_2k"]
    assert needles["context_tokens"][0] >= 2000 and (needles["texts"], needles["questions_a_text"]) == (1, 3)
    assert needles["cached_share"] > 0.5  # two of three questions find their text computed
    assert report["skills"]["tool_call"]["valid_calls"] == 0
    assert (report["kv_format"], report["index_format"], report["contract"]) == ("nvfp4", "nvfp4", "e4m3")
    assert report["python"]["tokens"] == 299 and 100 < report["python"]["perplexity"] < 3000  # a guess is 700
    assert sum("asked" in line for line in lines) == 4
    assert json.loads(json.dumps(report)) == report
    assert "needle_64k" in table(report) and "left out" in table(report)


@pytest.mark.parametrize("context_tokens", [1, 40])
def test_a_skill_that_the_context_cannot_hold_is_left_out(toy: Path, tmp_path: Path, context_tokens: int) -> None:
    shutil.copytree(toy, tmp_path / "toy")
    stated = json.loads((toy / "config.json").read_text())
    stated["text_config"]["max_position_embeddings"] = context_tokens
    (tmp_path / "toy" / "config.json").write_text(json.dumps(stated))
    report = evaluate(config(tmp_path / "toy", skills="sorting,python"), lambda line: None)
    assert "context is" in report["left_out"]["sorting"]
    assert ("python" in report["left_out"]) == (report["python"] is None) == (context_tokens == 1)


def test_formats_and_selection_follow_the_flags(toy: Path) -> None:
    report = evaluate(
        config(toy, skills="counting", items=1, kv_cache_dtype="bfloat16", selection="random"), lambda line: None
    )
    assert (report["kv_format"], report["index_format"], report["contract"]) == ("bfloat16", "bfloat16", "exact")
    assert report["selection"] == "random" and "measuring" in report["card"]["selection"]


def test_it_runs_on_a_bare_machine(toy: Path, tmp_path: Path) -> None:
    """`python -m tamis.bench.eval` needs neither the server's nor the command line's packages."""
    script = (
        f"import sys\nfor name in {ABSENT.split()!r}:\n    sys.modules[name] = None\n"
        "from tamis.bench.eval import main\nsys.exit(main(sys.argv[1:]))"
    )
    out = tmp_path / "scores.json"
    arguments = ["--model", str(toy), "--load-format", "dummy", "--skills", "counting", "--items", "1"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, "--threads", "1", "--json-out", str(out)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(out.read_text())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--skills", "needle_9k"], "needle_9k is no skill"),
        (["--skills", ","], "names none"),
        (["--perplexity-tokens", "1"], "--perplexity-tokens is 1, but must be at least 2"),
        (["--kv-cache-dtype", "int3"], "int3"),
        (["--perplexity-tokens", "1"], "--perplexity-tokens is 1, but must be at least 2"),
        (["--show-wrong", "-1"], "--show-wrong is -1"),
        (["--items", "1000001"], "--items is 1000001, but must be at most 100000"),
        (
            ["--json-out", "/nowhere/scores.json"],
            "--json-out is '/nowhere/scores.json', which is a folder or lies in none",
        ),
        (["--questions-a-text", "401"], "--questions-a-text is 401, but must be at most 400"),
        (["--json-out", "/"], "--json-out is '/'"),
        (["--selection", "best"], "best"),
        (["--kv-cache-dtype", "bfloat16", "--dequant-contract", "e4m3"], "dequant_contract is 'e4m3'"),
    ],
)
def test_what_cannot_be_honoured_is_said(
    toy: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    given = [] if "--items" in arguments else ["--items", "1"]
    code = main(["bench", "eval", str(toy), "--load-format", "dummy", *given, *arguments])
    assert code == 2 and says in capsys.readouterr().err


def test_all_means_every_skill_in_order() -> None:
    assert chosen_skills("all") == list(ALL) and set(SKILLS) < set(ALL)
    assert chosen_skills("python, sorting counting") == ["sorting", "counting", "python"]
    with pytest.raises(ConfigError, match="nothing is no skill"):
        chosen_skills("sorting,nothing")


def test_questions_are_held_out_and_different() -> None:
    for name in SKILLS:
        (items,) = plain_questions(name, 40, seed=1).groups
        assert len(items) == 40 and all(item.held_out for item in items)
        assert {item.thinking_mode for item in items} == {"enabled" if name.endswith("thinking") else "disabled"}
        assert len({str(item.messages) for item in items}) > 30
        assert [i.key for i in plain_questions(name, 40, seed=1).groups[0]] == [i.key for i in items]


def test_needle_texts_are_as_long_as_their_name_says() -> None:
    questions = needle_questions("needle_8k", 25, questions_a_text=10, seed=0, num_tokens=lambda text: len(text) // 3)
    assert [len(group) for group in questions.groups] == [10, 10, 5]
    for group in questions.groups:
        texts = {item.messages[0]["content"].rpartition("\n\n")[0] for item in group}
        assert len(texts) == 1 and 24_000 < len(texts.pop()) < 29_000
    assert len({item.key for group in questions.groups for item in group}) > 20
    (longest,) = needle_questions("needle_64k", 12, questions_a_text=None, seed=0, num_tokens=len).groups
    assert len(longest) == 12


def test_text_loss_is_the_model_s_own_cross_entropy(toy: Path) -> None:
    """Text by text or together, in chunks of any number: the same sum; a longer text costs more."""
    engine = EngineConfig(model=str(toy), load_format="dummy", threads=1, num_blocks_override=80, seed=3)
    runner, info = load_engine(engine, lambda stage, percent: None)
    generator = torch.Generator().manual_seed(0)
    length = 2 * CHUNK_TOKENS + 77
    texts = [torch.randint(info.vocab_size, (n,), generator=generator).tolist() for n in (length, 2, 130)]

    losses = [text_loss(runner, [text]) for text in texts]
    together = text_loss(runner, texts)

    assert [loss.num_tokens for loss in losses] == [length - 1, 1, 129]
    assert together.num_tokens == length + 129 and together.nats == sum(loss.nats for loss in losses)
    prefix = text_loss(runner, [texts[2][:-1]])
    assert prefix.nats < losses[2].nats and prefix.num_tokens == 128
    runner.shutdown()
