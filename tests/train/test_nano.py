"""The whole recipe at toy size: trains, scores, and exports a checkpoint that `transformers` agrees with."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MiniMaxM3VLForCausalLM
from transformers.models.minimax_m3_vl import MiniMaxM3VLTextConfig

import tamis
from tamis.errors import CheckpointError
from tamis.models.config import read_config
from tamis.models.m3 import M3ForCausalLM
from tamis.runner.convert import convert
from tamis.runner.weights import build_model, load_weights
from tamis.train.attention import TrainAttention
from tamis.train.export import average
from tamis.train.nano import main, run_phases
from tamis.train.presets import TOY

# A whole training run, slow when other processes share the cores.
pytestmark = pytest.mark.timeout(400)


BUNDLED = Path(tamis.__file__).parent / "nano" / "checkpoint"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    for phase in ("short", "longest"):
        run_phases(TOY, [phase], path, minutes=[5], items=1)
    return path


def loaded(checkpoint: Path) -> M3ForCausalLM:
    model = build_model(read_config(checkpoint), torch.float32, torch.device("cpu"))
    load_weights(model, checkpoint, lambda *progress: None)
    return model.eval()


def logits(model: M3ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    attention = TrainAttention(model.config, 1, len(ids))
    with torch.no_grad():
        return model.compute_logits(model(ids, torch.arange(len(ids)), attention, len(ids)))


def test_it_learns_phase_after_phase(folder: Path) -> None:
    reports = {name: json.loads((folder / name / "report.json").read_text()) for name in ("short", "longest")}
    assert [report["steps"] for report in reports.values()] == [15, 4]
    assert reports["longest"]["loss"] < 6.46  # a uniform guess is ln 640 = 6.46
    for name, report in reports.items():
        assert report["tokens"] == TOY.phase(name).rows * TOY.phase(name).length * report["steps"]
        assert all(0.0 <= share <= 1.0 for share in report["quick_scores"].values())
        assert (folder / name / "loss.png").read_bytes()[:4] == b"\x89PNG"
        steps = [json.loads(line)["step"] for line in (folder / name / "log.jsonl").read_text().splitlines()]
        assert steps[-1] == report["steps"]


def test_a_phase_starts_from_the_weights_before_it(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    run_phases(TOY, ["longest"], tmp_path, start=folder / "short", max_steps=0, items=0)
    before, after = (master_tensors(path) for path in (folder / "short", tmp_path / "longest"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_phase_without_the_one_before_says_so(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    with pytest.raises(CheckpointError, match="has no weights") as caught:
        run_phases(TOY, ["longest"], tmp_path)
    assert "train 'short' first" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["settled"], "The preset toy has no phase 'settled', but short, longest."),
        (["short", "--minutes", "0"], "--minutes is 0.0"),
        (["short", "--minutes", "nan"], "--minutes is nan"),
        (["short", "longest", "--minutes", "1"], "a number over 0 for each of 2 phases"),
        (["short", "--items", "-1"], "--items is -1"),
        (["short", "--workers", "-1"], "--workers is -1"),
        (["short", "--max-steps", "-1"], "--max-steps is -1"),
        (["short", "--seed", str(2**70)], f"--seed is {2**70}"),
        (["longest", "--from", "/nowhere"], "embed_tokens.weight of /nowhere is not there, but must be bf16 [640, 64]"),
        (["longest", "--from", str(BUNDLED)], "but must be bf16"),
    ],
)
def test_what_cannot_be_trained_is_said(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    monkeypatch.setattr("sys.argv", ["nano", *arguments, "--preset", "toy", "--out", str(tmp_path)])
    assert main() == 2
    assert says in capsys.readouterr().err


def test_packed_weights_are_not_trained_on_as_if_they_were_plain(folder: Path, tmp_path: Path) -> None:
    convert(folder / "short", tmp_path / "packed", "mxfp8", progress=lambda *progress: None)
    shutil.copy(folder / "tokenizer.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"float8_e4m3fn \[.*but must be bf16"):
        run_phases(TOY, ["longest"], tmp_path, start=tmp_path / "packed", max_steps=0, items=0)


@pytest.mark.parametrize(
    ("text", "says"), [("{}", "cannot be read"), (None, "has 4096 tokens, but the preset toy has 640")]
)
def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text or (BUNDLED / "tokenizer.json").read_text())
    with pytest.raises(CheckpointError, match=says):
        run_phases(TOY, ["short"], tmp_path)


def master_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def test_the_model_is_the_mean_of_the_phases_that_the_preset_names(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    average([run / name for name in TOY.averaged], run / "mean")

    first, last, mean = (loaded(run / name).state_dict() for name in (*TOY.averaged, "mean"))
    apart = 0
    for name, tensor in mean.items():
        want = (first[name].float() + last[name].float()) / 2
        assert torch.allclose(tensor.float(), want, rtol=2**-8, atol=0)
        apart += int((first[name] != last[name]).sum())
    assert apart > 1000


def test_folders_of_other_shapes_have_no_mean(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "short", tmp_path / "one")
    tensors = load_file(file := next((tmp_path / "one").glob("model-00001*")))
    name = sorted(tensors)[0]
    del tensors[name]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=re.escape(f"differ in 1 tensors: {name}")):
        average([tmp_path / "one", folder / "longest"], tmp_path / "mean")


def test_transformers_agrees(folder: Path) -> None:
    checkpoint = folder / "longest"
    raw = json.loads((checkpoint / "config.json").read_text())
    theirs = MiniMaxM3VLForCausalLM(
        MiniMaxM3VLTextConfig(**raw["text_config"] | {"attn_implementation": "eager"})
    ).eval()
    ours = loaded(checkpoint)
    theirs.load_state_dict(fused(master_tensors(checkpoint)))
    ids = torch.randint(500, (2200,), generator=torch.Generator().manual_seed(0))
    for length in (1, 130, 2200):
        with torch.no_grad():
            expected = theirs(input_ids=ids[None, :length]).logits[0]
        torch.testing.assert_close(logits(ours, ids[:length]), expected, atol=1e-4, rtol=1e-4)


def fused(hub: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Hub tensors under the names that `transformers` holds in memory."""
    out: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    for name, tensor in hub.items():
        name = name.removeprefix("language_model.").replace(".block_sparse_moe.", ".mlp.")
        name = name.replace(".mlp.e_score", ".mlp.gate.e_score").replace(".self_attn.index_", ".self_attn.indexer.")
        if ".mlp.experts." in name:
            stem, expert, part, _ = name.rsplit(".", 3)
            experts.setdefault(stem, {}).setdefault(int(expert), {})[part] = tensor
        elif ".gate_proj." in name:
            up = hub[
                "language_model." + name.replace(".mlp.shared", ".block_sparse_moe.shared").replace("gate_p", "up_p")
            ]
            out[name.replace("gate_proj", "gate_up_proj")] = torch.cat([tensor, up])
        elif ".up_proj." not in name:
            out[name] = tensor
    for stem, parts in experts.items():
        ordered = [parts[expert] for expert in sorted(parts)]
        out[f"{stem}.gate_up_proj"] = torch.stack([torch.cat([p["w1"], p["w3"]]) for p in ordered])
        out[f"{stem}.down_proj"] = torch.stack([p["w2"] for p in ordered])
    return {name: tensor.float() for name, tensor in out.items()}
