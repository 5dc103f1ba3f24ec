"""Build a model and fill it: from a checkpoint in any of its formats, or with random weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tamis.kernels.packed_weight import MXFP8Weight, quantize_mxfp8, quantize_nvfp4
from tamis.models.config import M3Config
from tamis.models.m3 import M3ForCausalLM
from tamis.runner.checkpoint import Checkpoint
from tamis.runner.packing import bad_value
from tamis.runner.targets import fill, linear_targets, plain_targets

Progress = Callable[[str, int], None]


def build_model(config: M3Config, dtype: torch.dtype, device: torch.device) -> M3ForCausalLM:
    """An uninitialised model with linears held as `config` says: plain ones in `dtype` (the router stays fp32)."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = M3ForCausalLM(config)
    finally:
        torch.set_default_dtype(previous)
    return model.requires_grad_(False).eval()


def load_dummy(model: M3ForCausalLM, seed: int) -> None:
    """Random weights of unit-gain scale: the same for the same seed, shapes and formats."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape: torch.Size) -> Tensor:
        std = 0.1 if len(shape) == 1 else shape[-1] ** -0.5
        return torch.empty(shape).normal_(0.0, std, generator=generator)

    for parameter in model.parameters():
        parameter.data.copy_(draw(parameter.shape))
    for _, target in linear_targets(model):
        if not isinstance(target, Tensor):
            quantize = quantize_mxfp8 if isinstance(target, MXFP8Weight) else quantize_nvfp4
            fill(target, quantize(draw(target.shape)))


def load_weights(
    model: M3ForCausalLM, folder: Path, progress: Progress, checkpoint: M3Config | None = None
) -> dict[int, tuple[float, float]]:
    """Copy a checkpoint's tensors into the model, shard by shard through mmap.

    Args:
        model: from `build_model`. Linears that it holds plain are unpacked to its dtype; packed ones keep their codes.
        folder: with model.safetensors, or model.safetensors.index.json and its shards.
        progress: called with ("loading", percent).
        checkpoint: the config with the formats that are stored, when the model is built for others.

    Returns:
        layer → (k_scale, v_scale) for layers that have them: a quantised cache holds k / k_scale and v / v_scale.

    Raises:
        CheckpointError: no or broken shards; tensors that do not fit, by name; a code or scale that is no number.
    """
    stored = Checkpoint(folder, checkpoint or model.config)
    matrices, plain = dict(linear_targets(model)), dict(plain_targets(model))
    total = sum(m.shape.numel() for m in matrices.values()) + sum(t.numel() for t in plain.values())
    done = 0
    for name in stored.in_file_order():
        if name in matrices:
            done += fill(matrices[name], stored.read_linear(name))
        elif name in plain:
            done += fill(plain[name], stored.read(name))
        progress("loading", 100 * done // total)
    return read_kv_scales(stored)


def read_kv_scales(stored: Checkpoint) -> dict[int, tuple[float, float]]:
    """layer → (k_scale, v_scale); one that a layer lacks is 1.

    Raises:
        CheckpointError: a scale that is no finite number over 0.
    """
    scales: dict[int, tuple[float, float]] = {}
    for layer in range(stored.config.num_layers):
        pair = [1.0, 1.0]
        for i, part in enumerate(("k_scale", "v_scale")):
            name = f"language_model.model.layers.{layer}.self_attn.{part}"
            if name in stored.plain:
                pair[i] = float(stored.read(name).float().reshape(()))
                if not (math.isfinite(pair[i]) and pair[i] > 0):
                    raise bad_value(name, str(pair[i]), "a finite number over 0")
        if pair != [1.0, 1.0]:
            scales[layer] = (pair[0], pair[1])
    return scales
