"""Quantization configs in their public spellings, and what is refused in them."""

from __future__ import annotations

import copy

import pytest

from tamis.errors import ConfigError
from tamis.models.config import parse_config
from tamis.models.quantization import WeightFormat
from tamis.models.quantization_names import NamePatterns
from tamis.models.tensor_schema import describe_formats, linears
from tests.models.test_config import raw

HUB = "language_model.model.layers."
PLAIN, MXFP8, NVFP4, PACKED = WeightFormat
MAP = {
    f"{HUB}0.self_attn": {"quant_algo": "MXFP8"},
    f"{HUB}0.mlp": {"quant_algo": "MXFP8", "group_size": 32},
    f"{HUB}1.self_attn.q_proj": {"quant_algo": "MXFP8"},
    "model.language_model.layers.1.self_attn.indexer": {"quant_algo": "MXFP8"},
    "model.language_model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
    f"{HUB}1.block_sparse_moe.shared_experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
}
IGNORED = ["lm_head", "*.self_attn.o_proj", r"re:.*\.1\.self_attn\.[kv]_proj"]
MIXED = {"quant_algo": "MIXED_PRECISION", "quantized_layers": MAP, "exclude_modules": IGNORED}


def formats(quantization, beside=None):
    """Linear's name after `layers.` → format, routed experts by the first."""
    config = parse_config(raw(top={"quantization_config": quantization}), None, beside)
    return {spec.name.removeprefix(HUB): spec.format for spec in linears(config)}


def test_mxfp8_is_everywhere_but_where_ignored():
    found = formats({"quant_method": "mxfp8", "ignored_layers": ["lm_head", f"{HUB}1.self_attn.q_proj"]})
    assert found.pop("1.self_attn.q_proj") is PLAIN
    assert set(found.values()) == {MXFP8}


@pytest.mark.parametrize(
    "entry",
    [
        f"{HUB}1.block_sparse_moe.shared_experts",
        "model.layers.1.block_sparse_moe.shared_experts",
        "model.language_model.layers.1.mlp.shared_experts",
        "shared_experts",
        "*.shared_experts",
        "*.shared_experts.*",
        r"re:.*shared_experts\.",
    ],
)
def test_a_module_is_known_under_all_its_names(entry):
    found = formats({"quant_method": "mxfp8", "modules_to_not_convert": [entry]})
    plain = {name for name, found_format in found.items() if found_format is PLAIN}
    assert plain == {f"1.block_sparse_moe.shared_experts.{part}_proj" for part in ("gate", "up", "down")}


@pytest.mark.parametrize(
    "entry", ["gate", "model.layers.1", "model.layers.1.block_sparse_moe.gate", "*.gate", "e_score"]
)
def test_a_router_by_name_hits_no_linear(entry):
    """`gate` must not match gate_proj, nor layers.1 layers.10."""
    patterns = NamePatterns([entry])
    assert patterns.find(f"{HUB}10.block_sparse_moe.shared_experts.gate_proj") is None


def test_m31_has_nvfp4_experts_and_mxfp8_elsewhere():
    quantization = {"quant_method": "mxfp8", "moe_quant_algo": "NVFP4", "moe_quant_format": "nvfp4-pack-quantized"}
    found = formats(quantization)
    assert all(f is (PACKED if ".experts." in name else MXFP8) for name, f in found.items())
    config = parse_config(raw(top={"quantization_config": quantization}))
    assert describe_formats(config) == "MXFP8, routed experts NVFP4"


@pytest.mark.parametrize(
    ("stated", "beside"),
    [
        (MIXED | {"quant_method": "modelopt"}, None),
        ({"quant_method": "modelopt", "quantization": MIXED}, None),
        (None, {"producer": {"name": "modelopt"}, "quantization": MIXED}),
        ({"quant_method": "modelopt"}, {"quantization": MIXED}),
        (MIXED | {"quant_method": "modelopt_mixed"}, {"quantization": MIXED}),
        ({**MIXED, "quant_method": "modelopt", "exclude_modules": None, "ignore": IGNORED}, None),
    ],
    ids=["config.json", "nested", "hf_quant_config", "tool-named-alone", "both", "ignore"],
)
def test_modelopts_map_says_the_format_of_each_linear(stated, beside):
    found = formats(stated, beside)
    assert found["0.self_attn.v_proj"] is MXFP8
    assert found["0.self_attn.o_proj"] is PLAIN
    assert found["1.self_attn.q_proj"] is MXFP8
    assert found["1.self_attn.k_proj"] is PLAIN
    assert found["1.self_attn.index_q_proj"] is MXFP8
    assert found["1.block_sparse_moe.experts.5.w2"] is NVFP4
    assert found["1.block_sparse_moe.shared_experts.down_proj"] is NVFP4


def test_config_groups_stand_in_for_the_map():
    targets = {MXFP8: [n for n, a in MAP.items() if a["quant_algo"] == "MXFP8"]}
    targets[NVFP4] = [n for n in MAP if n not in targets[MXFP8]]
    groups = {
        "group_0": {"weights": {"num_bits": 8, "type": "float", "group_size": 32}, "targets": targets[MXFP8]},
        "group_1": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": targets[NVFP4]},
    }
    mixed = {"quant_method": "modelopt", **MIXED, "quantized_layers": None, "config_groups": groups}
    assert formats(mixed) == formats({"quant_method": "modelopt", **MIXED})


@pytest.mark.parametrize(("algo", "want"), [("NVFP4", NVFP4), ("W4A16_NVFP4", NVFP4), ("MXFP8", MXFP8)])
def test_one_algorithm_for_all(algo, want):
    found = formats({"quant_method": "modelopt", "quant_algo": algo, "ignore": ["*.self_attn.*"]})
    assert {f for n, f in found.items() if "self_attn" in n} == {PLAIN}
    assert {f for n, f in found.items() if "self_attn" not in n} == {want}


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ({}, None),
        ({"kv_cache_quant_algo": None}, None),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}}, "fp8"),
    ],
)
def test_the_kv_cache_that_the_checkpoint_asks_for(said, want):
    quantization = {"quant_method": "mxfp8"} | said
    assert parse_config(raw(top={"quantization_config": quantization})).kv_cache_format == want


def without(name):
    changed = copy.deepcopy(MIXED)
    del changed["quantized_layers"][name]
    return {"quant_method": "modelopt"} | changed


def with_entry(name, **entry):
    return {"quant_method": "modelopt", **MIXED, "quantized_layers": MAP | {name: entry}}


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "gptq"}, "quantization_config.quant_method = 'gptq', but it must be mxfp8 or modelopt"),
        ({}, "quantization_config.quant_method = None"),
        ({"quant_method": 8}, "quant_method = 8, but it must be a string"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "quant_method = 'fp8'"),
        ({"quant_method": "mxfp8", "weight_block_size": [128, 128]}, r"weight_block_size = \[128, 128\]"),
        ({"quant_method": "mxfp8", "scale_fmt": "float"}, "scale_fmt = 'float'"),
        ({"quant_method": "mxfp8", "group_size": 64}, "group_size = 64"),
        ({"quant_method": "mxfp8", "ignored_layers": "lm_head"}, "ignored_layers = 'lm_head'"),
        ({"quant_method": "mxfp8", "ignored_layers": ["re:("]}, "ignored_layers"),
        ({"quant_method": "mxfp8", "rotation": "hadamard"}, r"not known here: quantization_config\.rotation"),
        ({"quant_method": "mxfp8", "moe_quant_algo": "INT4"}, "moe_quant_algo = 'INT4'"),
        ({"quant_method": "mxfp8", "moe_quant_algo": "NVFP4"}, "moe_quant_format = None"),
        (
            {"quant_method": "mxfp8", "moe_quant_algo": "NVFP4", "moe_quant_format": "marlin"},
            "moe_quant_format = 'marlin', but it must be nvfp4-pack-quantized",
        ),
        ({"quant_method": "mxfp8", "kv_cache_quant_algo": "INT8"}, "kv_cache_quant_algo = 'INT8'"),
        ({"quant_method": "modelopt"}, "quant_algo = None, but it must be one of MIXED_PRECISION, NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "quant_algo = 'FP8'"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size = 32"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "without quantized_layers"),
        (without(f"{HUB}1.self_attn.q_proj"), rf"names {HUB}1\.self_attn\.q_proj"),
        (without(f"{HUB}1.block_sparse_moe.shared_experts"), rf"names {HUB}1\.block_sparse_moe\.shared_experts\.gate"),
        (with_entry(f"{HUB}0.mlp.up_proj", quant_algo="NVFP4"), "mxfp8 for .*gate_proj, but nvfp4 for .*up_proj"),
        (
            with_entry(f"{HUB}1.block_sparse_moe.experts.3.w2", quant_algo="MXFP8"),
            r"nvfp4 for .*experts\.0\.w2, but mxfp8 for .*experts\.3\.w2",
        ),
        (with_entry(f"{HUB}0.mlp", quant_algo="INT4_AWQ"), r"mlp\.quant_algo = 'INT4_AWQ'"),
        (with_entry(f"{HUB}0.mlp", quant_algo="NVFP4", group_size=32), r"mlp\.group_size = 32"),
        ("fp8", "must be an object"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_what_is_not_known_is_refused_by_name(quantization, message):
    with pytest.raises(ConfigError, match=message):
        formats(quantization)


def test_two_files_that_disagree_are_refused():
    other = {"quantization": {"quant_algo": "NVFP4"}}
    with pytest.raises(ConfigError, match=r"config\.json and hf_quant_config\.json state different formats"):
        formats({"quant_method": "mxfp8"}, other)


def test_an_override_can_drop_a_field():
    raw_config = raw(top={"quantization_config": {"quant_method": "mxfp8", "rotation": "none"}})
    config = parse_config(raw_config, {"quantization_config": {"rotation": None}})
    assert config.is_quantized
