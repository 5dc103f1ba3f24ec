"""Which memory of a model each linear and each plain tensor of a checkpoint fills."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tamis.kernels.packed_weight import Weight, dense
from tamis.layers.linear import Linear
from tamis.layers.mlp import GatedMLP
from tamis.layers.moe import MoE
from tamis.layers.norm import RMSNorm
from tamis.layers.weight import rows
from tamis.models.m3 import DecoderLayer, M3ForCausalLM
from tamis.models.tensor_schema import PREFIX


def linear_targets(model: M3ForCausalLM) -> Iterator[tuple[str, Weight]]:
    """(hub name without `.weight`, the memory of its matrix) for every linear of the decoder layers."""
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, DecoderLayer)
        stem = f"{PREFIX}layers.{index}."
        for name, module in layer.self_attn.named_children():
            if isinstance(module, Linear):
                yield f"{stem}self_attn.{name}", module.matrix
        mlp = layer.mlp
        if isinstance(mlp, GatedMLP):
            yield from _gated(f"{stem}mlp.", mlp)
            continue
        assert isinstance(mlp, MoE)
        yield from _gated(f"{stem}block_sparse_moe.shared_experts.", mlp.shared_experts)
        gate_up, down = mlp.experts.matrix("gate_up_proj"), mlp.experts.matrix("down_proj")
        width = gate_up.shape[1] // 2
        for expert in range(gate_up.shape[0]):
            name = f"{stem}block_sparse_moe.experts.{expert}."
            yield f"{name}w1", rows(gate_up[expert], 0, width)
            yield f"{name}w3", rows(gate_up[expert], width, 2 * width)
            yield f"{name}w2", down[expert]


def _gated(stem: str, mlp: GatedMLP) -> Iterator[tuple[str, Weight]]:
    gate_up = mlp.gate_up_proj.matrix
    width = gate_up.shape[0] // 2
    yield f"{stem}gate_proj", rows(gate_up, 0, width)
    yield f"{stem}up_proj", rows(gate_up, width, 2 * width)
    yield f"{stem}down_proj", mlp.down_proj.matrix


def plain_targets(model: M3ForCausalLM) -> Iterator[tuple[str, Tensor]]:
    """(hub name, memory) for everything else that is a tensor of the model."""
    yield f"{PREFIX}embed_tokens.weight", model.embed_tokens.weight
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, DecoderLayer)
        stem = f"{PREFIX}layers.{index}."
        yield f"{stem}input_layernorm.weight", layer.input_layernorm.weight
        yield f"{stem}post_attention_layernorm.weight", layer.post_attention_layernorm.weight
        for name, module in layer.self_attn.named_children():
            if isinstance(module, RMSNorm):
                yield f"{stem}self_attn.{name}.weight", module.weight
        if isinstance(layer.mlp, MoE):
            yield f"{stem}block_sparse_moe.gate.weight", layer.mlp.gate.weight
            if model.config.use_routing_bias:
                yield f"{stem}block_sparse_moe.e_score_correction_bias", layer.mlp.gate.e_score_correction_bias
    yield f"{PREFIX}norm.weight", model.norm.weight
    if not model.config.tie_word_embeddings:
        yield "language_model.lm_head.weight", model.lm_head.weight


@torch.no_grad()
def fill(target: Weight, stored: Weight) -> int:
    """Copy a matrix into a model's memory, unpacked when the model holds it plain; returns how many values."""
    if isinstance(target, Tensor):
        target.copy_(dense(stored, target.dtype))
        return target.numel()
    assert type(stored) is type(target), "the model was built for another format"
    for to, values in zip(target.tensors().values(), stored.tensors().values(), strict=True):
        to.copy_(values)
    return target.shape.numel()
