"""The whole recipe at toy size: trains, scores, and exports a checkpoint that `transformers` agrees with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import MiniMaxM3VLForCausalLM
from transformers.models.minimax_m3_vl import MiniMaxM3VLTextConfig

from tamis.models.config import read_config
from tamis.models.m3 import M3ForCausalLM
from tamis.runner.weights import build_model, load_weights
from tamis.train.attention import TrainAttention
from tamis.train.nano import run
from tamis.train.presets import TOY

# A whole training run, slow when other processes share the cores.
pytestmark = pytest.mark.timeout(400)

PRESET = dataclasses.replace(TOY, steps=30)


def train(folder: Path, *, resume: bool = False, max_steps: int | None = None) -> dict:
    return run(
        PRESET,
        folder,
        minutes=5,
        seed=0,
        resume=resume,
        workers=1,
        compile_layers=False,
        max_steps=max_steps,
        questions=1,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    train(path, max_steps=15)
    train(path, resume=True)
    return path


def loaded(checkpoint: Path) -> M3ForCausalLM:
    model = build_model(read_config(checkpoint), torch.float32, torch.device("cpu"))
    load_weights(model, checkpoint, lambda *progress: None)
    return model.eval()


def logits(model: M3ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    attention = TrainAttention(model.config, 1, len(ids))
    with torch.no_grad():
        return model.compute_logits(model(ids, torch.arange(len(ids)), attention, len(ids)))


def test_it_learns_and_resumes(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert report["steps"] == 30
    assert report["held_out_loss"] < 6.0  # a uniform guess is ln 512 = 6.24
    assert 0.0 <= min(report["scores"].values()) <= max(report["scores"].values()) <= 1.0
    assert (folder / "loss.png").read_bytes()[:4] == b"\x89PNG"


def test_the_folder_is_complete_and_its_card_true(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    card = (folder / "checkpoint" / "README.md").read_text()
    for name, digest in report["sha256"].items():
        assert hashlib.sha256((folder / "checkpoint" / name).read_bytes()).hexdigest() == digest
        assert digest in card
    for licence in ("PSF", "BSD-3-Clause", "Apache-2.0"):
        assert licence in card


def test_transformers_agrees(folder: Path) -> None:
    checkpoint = folder / "checkpoint"
    raw = json.loads((checkpoint / "config.json").read_text())
    theirs = MiniMaxM3VLForCausalLM(
        MiniMaxM3VLTextConfig(**raw["text_config"] | {"attn_implementation": "eager"})
    ).eval()
    ours = loaded(checkpoint)
    theirs.load_state_dict(fused(load_file(checkpoint / "model.safetensors")))
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
