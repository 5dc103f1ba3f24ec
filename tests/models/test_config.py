"""config.json: values that would change the maths are errors that name the field."""

from __future__ import annotations

import json

import pytest

from tamis.errors import CheckpointError, ConfigError
from tamis.models.config import parse_config, read_config

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "moe_layer_freq": [0, 1],
    "sparse_attention_config": {"sparse_num_index_heads": 2, "sparse_attention_freq": [0, 1]},
}


def raw(sparse=None, top=None, **text):
    merged = {**TEXT, **text}
    merged["sparse_attention_config"] = {**TEXT["sparse_attention_config"], **(sparse or {})}
    return {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "text_config": merged, **(top or {})}


def test_defaults_are_m3s():
    config = parse_config(raw())
    assert (config.head_dim, config.rotary_dim, config.topk_blocks, config.local_blocks) == (128, 64, 16, 1)
    assert (config.swiglu_alpha, config.swiglu_limit, config.routed_scaling_factor) == (1.702, 7.0, 2.0)
    assert config.sparse_layers == config.moe_layers == (False, True)


@pytest.mark.parametrize(
    "broken, field",
    [
        (raw(scoring_func="softmax"), "scoring_func"),
        (raw(hidden_act="gelu"), "hidden_act"),
        (raw(use_gemma_norm=False), "use_gemma_norm"),
        (raw(qk_norm_type="layer"), "qk_norm_type"),
        (raw(attention_bias=True), "attention_bias"),
        (raw(rope_scaling={"factor": 2}), "rope_scaling"),
        (raw(rope_parameters={"rope_type": "yarn"}), "rope_type"),
        (raw(rotary_dim=64, rope_parameters={"partial_rotary_factor": 0.25}), "partial_rotary_factor × head_dim"),
        (raw(rotary_dim=3), "rotary_dim"),
        (raw(n_shared_experts=2), "n_shared_experts"),
        (raw(num_attention_heads=5), "num_attention_heads"),
        (raw(head_dim=24), "head_dim"),
        (raw(num_experts_per_tok=200), "num_experts_per_tok"),
        (raw(moe_layer_freq=[0, 1, 1]), "moe_layer_freq"),
        (raw(layer_types=["full_attention", "linear"]), "layer_types"),
        (raw({"sparse_block_size": 64}), "index_block_size"),
        (raw({"sparse_score_type": "mean"}), "sparse_score_type"),
        (raw({"sparse_num_index_heads": 1}), "index_n_heads"),
        (raw({"sparse_init_block": 16}), "index_topk_blocks"),
        (raw({"sparse_disable_index_value": [0, 0]}), "sparse_disable_index_value"),
        (raw({"sparse_gate": 1}), "sparse_gate"),
        (raw(mystery_gain=2.0), "mystery_gain"),
        (raw(hidden_size="big"), "hidden_size"),
        (raw(hidden_size=0), "hidden_size"),
        (raw(torch_dtype="float16"), "dtype"),
        (raw(top={"architectures": ["LlamaForCausalLM"]}), "architectures"),
        (raw(top={"architectures": "Llama"}), "architectures"),
        (raw(top={"architectures": [1]}), "architectures"),
        (raw(top={"quantization_config": "fp8"}), "quantization_config"),
        (raw(top={"logit_softcapping": 30.0}), "logit_softcapping"),
        ({"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "text_config": []}, "text_config"),
        ({"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "text_config": None}, "text_config"),
        (raw(rope_parameters=[]), "rope_parameters"),
        (raw(rope_parameters={"rope_theta": 1e4, "mscale": 2}), "mscale"),
        (raw(rope_type="yarn"), "rope_type"),
        (raw(rope_theta="x"), "rope_theta"),
        (raw(rope_theta=0), "rope_theta"),
        (raw(hidden_size=float("inf")), "hidden_size"),
        (raw(rms_norm_eps=float("nan")), "rms_norm_eps"),
        (raw(tie_word_embeddings="false"), "tie_word_embeddings"),
        (raw({"sparse_attention_freq": None}), "sparse_attention_freq"),
        # two spellings of one thing that contradict each other
        (raw({"sparse_topk_blocks": 4}, index_topk_blocks=8), "sparse_topk_blocks"),
        (raw({"sparse_local_block": 2}, index_local_blocks=1), "sparse_local_block"),
        (raw(layer_types=["full_attention", "full_attention"]), "sparse_attention_freq"),
        (raw(mlp_layer_types=["sparse", "sparse"]), "moe_layer_freq"),
        (raw(rope_theta=1e4, rope_parameters={"rope_theta": 2e4}), "rope_theta"),
        (raw(num_local_experts=8, num_experts=4), "num_experts"),
        (raw(dtype="float32", torch_dtype="bfloat16"), "torch_dtype"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_changes_the_maths_is_refused_by_name(broken, field):
    with pytest.raises(ConfigError) as caught:
        parse_config(broken)
    assert caught.value.param == field
    assert field.split(".")[-1].removesuffix("s") in caught.value.message


@pytest.mark.parametrize(
    "field, overrides",
    [
        ("mystery_gain", {"mystery_gain": None}),
        ("sparse_gate", {"sparse_attention_config": {"sparse_gate": None}}),
        ("logit_softcapping", {"logit_softcapping": None}),
    ],
)
def test_the_hint_of_an_unknown_field_works_as_written(field, overrides):
    broken = raw({"sparse_gate": 1}, {"logit_softcapping": 30.0}, mystery_gain=2.0)
    alone = {"mystery_gain": None, "sparse_attention_config": {"sparse_gate": None}, "logit_softcapping": None}
    others = {key: value for key, value in alone.items() if key not in overrides}
    with pytest.raises(ConfigError) as caught:
        parse_config(broken, others)
    hinted = json.loads(caught.value.hint.split("--hf-overrides '")[1].split("'")[0])
    assert caught.value.param == field
    assert hinted == overrides
    parse_config(broken, {**others, **hinted})


def test_keys_of_the_vision_part_are_left_alone():
    parse_config(raw(top={"image_token_index": 5, "projector_hidden_act": "gelu", "vision_config": {"x": 1}}))


def test_overrides_reach_the_text_config_and_null_removes():
    config = parse_config(
        raw(mystery_gain=2.0),
        {"mystery_gain": None, "num_hidden_layers": 5, "sparse_attention_config": {"sparse_topk_blocks": 4}},
    )
    assert config.num_layers == 5
    assert config.sparse_layers == (False, True, True, True, True)
    assert config.topk_blocks == 4


@pytest.mark.parametrize(
    "text, message", [(None, "has no config.json"), ("{", "not valid JSON"), ("[]", "JSON object")]
)
def test_a_missing_or_broken_file_is_one_sentence(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


def test_both_spellings_of_an_empty_layer_list_default_to_dense_attention_and_moe(tmp_path):
    flat = {k: v for k, v in TEXT.items() if k not in ("moe_layer_freq", "sparse_attention_config")}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "minimax_m3_vl_text", **flat}))
    config = read_config(tmp_path)
    assert config.sparse_layers == (False, False)
    assert config.moe_layers == (True, True)
