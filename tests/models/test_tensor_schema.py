"""The schema of the full-size models, from their configs alone, against what is published of them."""

from __future__ import annotations

import math

import pytest

from tamis.models.config import parse_config
from tamis.models.tensor_schema import TensorSpec, linears, text_tensors
from tests.models.public_configs import m3_config, m31_config, modelopt_config, mxfp8_config


def vision_shapes() -> dict[str, tuple[int, ...]]:
    """The tower and projector of M3, which are no part of the text schema: all bf16."""
    hidden, width, text = 1280, 5120, 6144
    shapes: dict[str, tuple[int, ...]] = {"embeddings.patch_embedding.weight": (hidden, 3, 2, 14, 14)}

    def layer(name: str, out: int, columns: int | None = None) -> None:
        shapes[f"{name}.weight"] = (out,) if columns is None else (out, columns)
        shapes[f"{name}.bias"] = (out,)

    layer("pre_layrnorm", hidden)
    for i in range(32):
        layer(f"layers.{i}.layer_norm1", hidden)
        layer(f"layers.{i}.layer_norm2", hidden)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            layer(f"layers.{i}.self_attn.{part}", hidden, hidden)
        layer(f"layers.{i}.mlp.fc1", width, hidden)
        layer(f"layers.{i}.mlp.fc2", hidden, width)
    layer("multi_modal_projector.linear_1", text, hidden)
    layer("multi_modal_projector.linear_2", text, text)
    layer("patch_merge_mlp.linear_1", text, 4 * text)
    layer("patch_merge_mlp.linear_2", text, text)
    return shapes


def published(schema: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Without what no public checkpoint ships: KV scales."""
    return {n: t for n, t in schema.items() if not n.endswith((".k_scale", ".v_scale"))}


def num_bytes(schema: dict[str, TensorSpec]) -> int:
    return sum(t.num_bytes for t in schema.values()) + 2 * sum(map(math.prod, vision_shapes().values()))


def test_m31_has_89632_tensors_and_250_gb():
    schema = published(text_tensors(parse_config(m3_config(all_sparse=True, quantization=m31_config()))))
    # Attention, all 60 layers: 6 linears × 2, 4 norms inside, 2 around. Dense MLP: 3 × 2 in 3 layers. MoE, 57 layers:
    # router and bias, shared expert 3 × 2, experts 128 × 3 × 4. Embedding, last norm, head.
    text = 60 * (6 * 2 + 4 + 2) + 3 * (3 * 2) + 57 * (2 + 3 * 2 + 128 * 3 * 4) + 3
    # Vision: patch embedding, first norm, 32 layers × 8 modules, 4 projector linears, each with a bias but the first.
    vision = 1 + 2 + 32 * 8 * 2 + 4 * 2
    assert (len(schema), len(vision_shapes())) == (text, vision)
    assert text + vision == 89_632  # neither MTP nor DSpark is among them
    assert round(num_bytes(schema) / 1e9, 1) == 250.1


def test_m31_names_dtypes_and_shapes():
    schema = text_tensors(parse_config(m3_config(all_sparse=True, quantization=m31_config())))
    stem = "language_model.model.layers."
    want = {
        "language_model.model.embed_tokens.weight": "BF16 [200064, 6144]",
        "language_model.lm_head.weight": "BF16 [200064, 6144]",
        "language_model.model.norm.weight": "BF16 [6144]",
        f"{stem}0.self_attn.q_proj.weight": "F8_E4M3 [8192, 6144]",
        f"{stem}0.self_attn.q_proj.weight_scale_inv": "U8 [8192, 192]",
        f"{stem}0.self_attn.index_q_proj.weight": "F8_E4M3 [512, 6144]",
        f"{stem}59.self_attn.index_k_proj.weight_scale_inv": "U8 [128, 192]",
        f"{stem}59.self_attn.index_k_norm.weight": "BF16 [128]",
        f"{stem}2.mlp.down_proj.weight_scale_inv": "U8 [6144, 384]",
        f"{stem}3.block_sparse_moe.gate.weight": "F32 [128, 6144]",
        f"{stem}3.block_sparse_moe.e_score_correction_bias": "F32 [128]",
        f"{stem}3.block_sparse_moe.shared_experts.up_proj.weight": "F8_E4M3 [3072, 6144]",
        f"{stem}3.block_sparse_moe.experts.127.w1.weight_packed": "U8 [3072, 3072]",
        f"{stem}3.block_sparse_moe.experts.127.w1.weight_scale": "F8_E4M3 [3072, 384]",
        f"{stem}3.block_sparse_moe.experts.127.w2.weight_packed": "U8 [6144, 1536]",
        f"{stem}3.block_sparse_moe.experts.127.w2.weight_global_scale": "F32 []",
        f"{stem}3.block_sparse_moe.experts.127.w2.input_global_scale": "F32 []",
    }
    assert {name: str(schema[name]) for name in want} == want


def test_m3_has_23416_tensors():
    schema = published(text_tensors(parse_config(m3_config())))
    assert len(schema) + len(vision_shapes()) == 23_416
    assert {t.dtypes[0] for t in schema.values()} == {"BF16", "F32"}


def test_m3_in_mxfp8_takes_451_gb_with_its_one_mtp_layer():
    config = m3_config(quantization=mxfp8_config())
    schema = published(text_tensors(parse_config(config)))
    # By the figure published (451.5 GB) one MTP module must ship: a MoE layer with an index branch, a plain projection
    # of two hidden states to one, and three norms.
    layer = sum(t.num_bytes for n, t in schema.items() if n.startswith("language_model.model.layers.59."))
    mtp = layer + 2 * (2 * 6144 * 6144 + 3 * 6144)
    assert abs((num_bytes(schema) + mtp) / 1e9 - 451.5) < 0.06


def test_modelopts_map_of_m3_covers_every_linear():
    config = parse_config(m3_config(), None, modelopt_config())
    specs = list(linears(config))
    assert {(s.is_routed, str(s.format)) for s in specs} == {(True, "nvfp4"), (False, "mxfp8")}
    schema = published(text_tensors(config))
    name = "language_model.model.layers.3.block_sparse_moe.experts.0.w3."
    want = {"weight": "U8 [3072, 3072]", "weight_scale": "F8_E4M3 [3072, 384]", "weight_scale_2": "F32 []"}
    assert {part: str(schema[name + part]) for part in want} == want


@pytest.mark.parametrize("all_sparse", [False, True], ids=["m3", "m3.1"])
def test_real_configs_load_by_their_own_fields(all_sparse):
    config = parse_config(m3_config(all_sparse=all_sparse))
    assert sum(config.sparse_layers) == (60 if all_sparse else 57)
    assert (config.topk_blocks, config.num_experts_per_tok, config.rotary_dim) == (16, 4, 64)
    assert not config.is_quantized
