"""A small checkpoint under hub names, its other formats, and what its tensors mean by the formulas of the formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tamis.models.config import parse_config
from tamis.models.tensor_schema import text_tensors
from tamis.runner.convert import Conversion, convert

# Odd numbers of groups; a dense and two MoE layers, full attention and MSA.
CONFIG: dict[str, Any] = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "text_config": {
        "vocab_size": 97,
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rotary_dim": 16,
        "rope_theta": 10000.0,
        "intermediate_size": 32,
        "dense_intermediate_size": 160,
        "shared_intermediate_size": 64,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        "moe_layer_freq": [0, 1, 1],
        "sparse_attention_config": {
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 32,
            "sparse_topk_blocks": 3,
            "sparse_attention_freq": [0, 1, 1],
        },
    },
}
VISION = "vision_tower.vision_model.pre_layrnorm.weight"
LAYER = "language_model.model.layers.1."
EXPERT = f"{LAYER}block_sparse_moe.experts.2.w1"
LINEAR = f"{LAYER}self_attn.k_proj"
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def write_plain(folder: Path, seed: int = 0) -> Path:
    """The checkpoint in bf16, with a tensor of the vision tower and a tokenizer file."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, spec in text_tensors(parse_config(CONFIG)).items():
        if spec.is_required:
            scale = 0.2 if len(spec.shape) == 1 else spec.shape[-1] ** -0.5
            values = torch.randn(spec.shape, generator=generator) * scale
            tensors[name] = values.to(_DTYPES[spec.dtypes[0]])
    tensors[VISION] = torch.randn(16, generator=generator).bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def convert_quietly(source: Path, folder: Path, target: str, **options: Any) -> Conversion:
    return convert(source, folder, target, progress=lambda stage, percent: None, **options)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's shards."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def values_of(tensors: dict[str, Tensor], linear: str) -> Tensor:
    """fp32 values of a linear by the formulas of its format, whichever its tensors are of."""
    if f"{linear}.weight_scale_inv" in tensors:
        codes, exponents = tensors[f"{linear}.weight"], tensors[f"{linear}.weight_scale_inv"]
        return codes.float() * torch.exp2(exponents.float() - 127).repeat_interleave(32, dim=1)
    if f"{linear}.weight_scale" not in tensors:
        return tensors[f"{linear}.weight"].float()
    if f"{linear}.weight_packed" in tensors:
        codes, factor = tensors[f"{linear}.weight_packed"], 1.0 / tensors[f"{linear}.weight_global_scale"]
    else:
        codes, factor = tensors[f"{linear}.weight"], tensors[f"{linear}.weight_scale_2"]
    values = _E2M1[torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1).int()]
    return values * tensors[f"{linear}.weight_scale"].float().repeat_interleave(16, dim=1) * factor


def change(folder: Path, edit: Any) -> None:
    """Let `edit` change the tensors of a folder with one weight file."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_json(path: Path, edit: Any) -> None:
    """Let `edit` change a JSON object."""
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))
