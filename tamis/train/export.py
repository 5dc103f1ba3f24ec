"""The checkpoint as M3's own are: hub tensor names, bf16 safetensors, config.json, tokenizer and sampling advice."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from tamis.errors import CheckpointError
from tamis.models.m3 import M3ForCausalLM
from tamis.train.presets import Preset
from tamis.train.tokenizer import BEGIN_OF_DOCUMENT, END_OF_TURN, IMAGE, VIDEO, save_tokenizer

# As published: the router stays fp32.
_FP32 = ("gate.weight", "e_score_correction_bias")
SHARD_BYTES = 15_000_000
TEMPLATE = Path(__file__).parents[1] / "frontend" / "templates" / "minimax_m3.jinja"


def hub_tensors(model: M3ForCausalLM) -> dict[str, Tensor]:
    """Every tensor under its hub name, contiguous, on the CPU, in the published dtype."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        for hub_name, part in _split(name, tensor.detach().cpu()):
            dtype = torch.float32 if hub_name.endswith(_FP32) else torch.bfloat16
            tensors[hub_name] = part.to(dtype).contiguous()
    return tensors


def _split(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Fused gate and up, and stacked experts, into the single matrices of the hub."""
    stem = "language_model." if name.startswith("lm_head") else "language_model.model."
    if match := re.fullmatch(r"(.*)\.mlp\.experts\.(gate_up_proj|down_proj)", name):
        layer, kind = match.groups()
        parts = []
        for expert, matrix in enumerate(tensor):
            pieces = {"w1": matrix.chunk(2)[0], "w3": matrix.chunk(2)[1]} if kind == "gate_up_proj" else {"w2": matrix}
            parts += [
                (f"{stem}{layer}.block_sparse_moe.experts.{expert}.{w}.weight", piece) for w, piece in pieces.items()
            ]
        return parts
    if name.endswith("e_score_correction_bias"):
        return [(stem + name.replace(".mlp.gate.", ".block_sparse_moe."), tensor)]
    name = re.sub(r"\.mlp\.(gate|shared_experts)\.", r".block_sparse_moe.\1.", name)
    if ".gate_up_proj." in name:
        gate, up = tensor.chunk(2)
        return [(stem + name.replace("gate_up", "gate"), gate), (stem + name.replace("gate_up", "up"), up)]
    return [(stem + name, tensor)]


@torch.no_grad()
def load_master(model: M3ForCausalLM, folder: Path) -> None:
    """Fill a model from a folder that `export` wrote, or `tamis quantize --format bf16`.

    Raises:
        CheckpointError: no weights, other shapes, or packed ones.
    """
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(file)
    for name, target in model.state_dict().items():
        for hub_name, part in _split(name, target):
            stored = tensors.get(hub_name)
            # Codes copied without their scales, or a vector stretched over a matrix, would train on unseen.
            if stored is None or stored.shape != part.shape or stored.element_size() < 2:
                found = "not there" if stored is None else f"{stored.dtype} {list(stored.shape)}"
                raise CheckpointError(
                    f"{hub_name} of {folder} is {found}, but must be bf16 {list(part.shape)}.",
                    param="from",
                    hint="Name a folder of this preset in bf16: tamis quantize SRC DST --format bf16.",
                )
            part.copy_(stored)


def export(model: M3ForCausalLM, tokenizer: Tokenizer, preset: Preset, folder: Path) -> None:
    """Write the bf16 checkpoint into `folder`, in shards of at most `SHARD_BYTES`."""
    folder.mkdir(parents=True, exist_ok=True)
    _save_shards(hub_tensors(model), folder)
    begin, end = tokenizer.token_to_id(BEGIN_OF_DOCUMENT), tokenizer.token_to_id(END_OF_TURN)
    config = preset.config_json()
    config |= {"image_token_index": tokenizer.token_to_id(IMAGE), "video_token_index": tokenizer.token_to_id(VIDEO)}
    config["text_config"] |= {"bos_token_id": begin, "eos_token_id": end}
    generation = {
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": end,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 40,
    }
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, folder, max_length=preset.max_length, chat_template=TEMPLATE.read_text(encoding="utf-8"))


def average(folders: Sequence[Path], out: Path) -> None:
    """Write the mean of the weights that `export` wrote into several folders, with the last one's other files.

    Weights that one run went through lie in one valley, and their mean is often better than any of them (Izmailov et
    al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018).

    Raises:
        CheckpointError: the folders' tensors differ in name or shape.
    """
    found = [_stored_tensors(folder) for folder in folders]
    for folder, tensors in zip(folders, found, strict=True):
        differing = sorted(
            name
            for name in tensors.keys() | found[-1].keys()
            if name not in tensors or name not in found[-1] or tensors[name].shape != found[-1][name].shape
        )
        if differing:
            raise CheckpointError(
                f"{folder} and {folders[-1]} differ in {len(differing)} tensors: {differing[0]}.", param="out"
            )
    out.mkdir(parents=True, exist_ok=True)
    for file in folders[-1].glob("*"):
        if file.suffix in (".json", ".jinja") and file.name not in ("report.json", "model.safetensors.index.json"):
            shutil.copyfile(file, out / file.name)
    mean = {
        name: (sum((tensors[name].float() for tensors in found[:-1]), last.float()) / len(found)).to(last.dtype)
        for name, last in found[-1].items()
    }
    _save_shards(mean, out)


def _stored_tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(file)
    if not tensors:
        raise CheckpointError(f"{folder} has no weights.", param="out", hint="Train its phase first.")
    return tensors


def _save_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file, shard in zip(names, shards, strict=True):
        save_file(shard, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": {name: file for file, shard in zip(names, shards, strict=True) for name in shard},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
