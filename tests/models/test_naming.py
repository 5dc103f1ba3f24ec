"""Both tensor namings and both spellings of config.json load to the same function; what does not fit is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MiniMaxM3SparseForConditionalGeneration
from transformers.models.minimax_m3_vl import MiniMaxM3VLConfig

from tamis.errors import CheckpointError
from tamis.models.config import read_config
from tests.models.oracle import Shape, load_ours, oracle_model, oracle_run, our_run

SHAPE = Shape()
TOKENS = torch.randint(0, 97, (300,), generator=torch.Generator().manual_seed(0)).tolist()
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@pytest.fixture(scope="module")
def fused(tmp_path_factory) -> tuple[Path, torch.Tensor]:
    """A text-only checkpoint as transformers saves it, and its logits."""
    model = oracle_model(SHAPE, seed=3)
    folder = tmp_path_factory.mktemp("fused")
    model.save_pretrained(folder)
    return folder, oracle_run(model, TOKENS)[0]


@pytest.fixture(scope="module")
def hub(tmp_path_factory, fused) -> Path:
    """The same weights inside the multimodal class, which saves hub names, in several shards."""
    text = oracle_model(SHAPE, seed=3)
    config = MiniMaxM3VLConfig(
        text_config=SHAPE.text_config().to_dict(), vision_config=VISION, projector_hidden_size=16, dtype="float32"
    )
    model = MiniMaxM3SparseForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    folder = tmp_path_factory.mktemp("hub")
    model.save_pretrained(folder, max_shard_size="60KB")
    return folder


def test_fused_names_load(fused):
    folder, want = fused
    torch.testing.assert_close(our_run(load_ours(folder), TOKENS)[0], want, rtol=0, atol=1e-4)


def test_hub_names_in_shards_load_without_the_vision_part(hub, fused):
    names = json.loads((hub / "model.safetensors.index.json").read_text())["weight_map"]
    assert any(n.startswith("language_model.model.layers.1.block_sparse_moe.experts.0.w1") for n in names)
    assert any(n.startswith("vision_tower.") for n in names)
    assert len(set(names.values())) > 2
    torch.testing.assert_close(our_run(load_ours(hub), TOKENS)[0], fused[1], rtol=0, atol=1e-4)


def test_m3_spelling_of_the_config_gives_the_same_model(hub, tmp_path, fused):
    folder = copy(hub, tmp_path)
    saved = json.loads((folder / "config.json").read_text())["text_config"]
    keep = """vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim rms_norm_eps
        rotary_dim intermediate_size dense_intermediate_size shared_intermediate_size num_local_experts
        num_experts_per_tok swiglu_alpha swiglu_limit routed_scaling_factor max_position_embeddings"""
    text = {key: saved[key] for key in keep.split()} | {
        "rope_theta": 10000.0,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "hidden_act": "swigluoai",
        "use_gemma_norm": True,
        "qk_norm_type": "per_head",
        "num_mtp_modules": 7,
        "n_shared_experts": 1,
        "moe_layer_freq": [0, 1, 1],
        "sparse_attention_config": {
            "sparse_index_dim": 32,
            "sparse_num_index_heads": 2,
            "sparse_topk_blocks": 3,
            "sparse_block_size": 128,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": [0, 1, 1],
            "sparse_disable_index_value": [0, 1, 1],
        },
    }
    raw = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "torch_dtype": "float32", "text_config": text}
    before = read_config(folder)
    (folder / "config.json").write_text(json.dumps(raw))
    assert read_config(folder) == before
    torch.testing.assert_close(our_run(load_ours(folder), TOKENS)[0], fused[1], rtol=0, atol=1e-4)


def copy(folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "checkpoint"
    shutil.copytree(folder, target)
    return target


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def misshape(tensors):
    tensors["model.layers.1.self_attn.q_proj.weight"] = torch.zeros(5, 48)


def quantise(tensors):
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors[name] = (tensors[name] * 50).to(torch.int8)


def add_a_row(tensors):
    name = "model.layers.2.mlp.experts.gate_up_proj"
    tensors[name] = torch.cat([tensors[name], tensors[name][:, :1]], dim=1)


def name_twice(tensors):
    tensors["language_model.lm_head.weight"] = tensors["lm_head.weight"].clone()


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda t: t.pop("model.layers.1.self_attn.indexer.k_norm.weight"),
            r"1 missing .*layers\.1\.self_attn\.index_k_norm",
        ),
        (lambda t: t.pop("model.layers.2.mlp.experts.down_proj"), r"4 missing .*experts\.0\.w2"),
        (lambda t: t.update(bonus=torch.zeros(1)), r"1 surplus \(bonus\)"),
        (
            quantise,
            r"1 of another dtype \(model\.layers\.1\.self_attn\.q_proj\.weight is I8, expected F32 or BF16 or F16\)",
        ),
        (name_twice, r"holds language_model\.lm_head\.weight twice, as .*lm_head\.weight and as .*lm_head\.weight"),
        (
            add_a_row,
            r"4 misshapen \(model\.layers\.2\.mlp\.experts\.gate_up_proj is \[(\d+), 48\], expected \[\d+, 48\]\)",
        ),
        (misshape, r"1 misshapen \(model\.layers\.1\.self_attn\.q_proj\.weight is \[5, 48\], expected \[128, 48\]\)"),
    ],
    ids=["missing", "missing-fused-expert", "surplus", "int8", "both-names", "odd-fused-rows", "misshapen"],
)
def test_tensors_that_do_not_fit_are_named(fused, tmp_path, change, message):
    folder = copy(fused[0], tmp_path)
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_ours(folder)


def test_a_truncated_shard_is_one_clear_sentence(fused, tmp_path):
    folder = copy(fused[0], tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated"):
        load_ours(folder)


def test_a_missing_shard_is_named(hub, tmp_path):
    folder = copy(hub, tmp_path)
    next(iter(folder.glob("model-00002-*"))).unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of \d+ shards: model-00002"):
        load_ours(folder)


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[]", b"{}", b'{"weight_map": [1]}'], ids=repr)
def test_an_index_that_is_none_is_named(hub, tmp_path, text):
    folder = copy(hub, tmp_path)
    (folder / "model.safetensors.index.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"index\.json is not a safetensors index"):
        load_ours(folder)


def test_a_tensor_in_two_shards_is_refused(hub, tmp_path):
    folder = copy(hub, tmp_path)
    shards = sorted(folder.glob("model-*.safetensors"))
    first = load_file(shards[0])
    save_file({**load_file(shards[1]), **first}, shards[1])
    with pytest.raises(CheckpointError, match="stands in both"):
        load_ours(folder)
