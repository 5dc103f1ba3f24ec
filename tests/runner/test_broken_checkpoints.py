"""A packed checkpoint that does not fit its config is refused before anything is served: tensor, found, expected."""

from __future__ import annotations

import re

import pytest
import torch

from tamis.config import EngineConfig
from tamis.errors import CheckpointError, ConfigError
from tamis.runner.load import load_engine
from tests.runner.small_checkpoint import EXPERT, LAYER, LINEAR, change, change_json

MXFP8_SCALE = f"{LINEAR}.weight_scale_inv"


def load(folder):
    config = EngineConfig(model=str(folder), device="cpu", num_blocks_override=4, max_model_len=512)
    load_engine(config, lambda stage, percent: None)[0].shutdown()


def set_scalar(name, value):
    return lambda t: t.update({name: torch.tensor(value)})


@pytest.mark.parametrize(
    ("target", "edit", "message"),
    [
        ("mxfp8", lambda t: t.pop(MXFP8_SCALE), f"1 missing ({MXFP8_SCALE} (U8 [64, 3]))"),
        (
            "m3.1",
            lambda t: t.pop(f"{EXPERT}.weight_global_scale"),
            f"1 missing ({EXPERT}.weight_global_scale (F32 []))",
        ),
        ("m3.1", lambda t: t.pop(f"{EXPERT}.weight_scale"), f"1 missing ({EXPERT}.weight_scale (F8_E4M3 [32, 6]))"),
        ("modelopt", lambda t: t.pop(f"{EXPERT}.weight_scale_2"), f"1 missing ({EXPERT}.weight_scale_2 (F32 []))"),
        (
            "mxfp8",
            lambda t: t.update({MXFP8_SCALE: torch.zeros(64, 6, dtype=torch.uint8)}),
            f"1 misshapen ({MXFP8_SCALE} is [64, 6], expected [64, 3])",
        ),
        (
            "m3.1",
            lambda t: t.update({f"{EXPERT}.weight_scale": torch.zeros(32, 3).to(torch.float8_e4m3fn)}),
            f"1 misshapen ({EXPERT}.weight_scale is [32, 3], expected [32, 6])",
        ),
        (
            "modelopt",
            lambda t: t.update({f"{EXPERT}.weight": torch.zeros(32, 47, dtype=torch.uint8)}),
            f"1 misshapen ({EXPERT}.weight is [32, 47], expected [32, 48])",
        ),
        (
            "m3.1",
            lambda t: t.update({f"{LINEAR}.weight": torch.zeros(64, 96, dtype=torch.bfloat16)}),
            f"1 of another dtype ({LINEAR}.weight is BF16, expected F8_E4M3)",
        ),
        (
            "mxfp8",
            lambda t: t.update({MXFP8_SCALE: torch.zeros(64, 3)}),
            f"1 of another dtype ({MXFP8_SCALE} is F32, expected U8 or F8_E8M0)",
        ),
        (
            "m3.1",
            lambda t: t.update({f"{EXPERT}.weight_scale_2": torch.ones(())}),
            f"1 surplus ({EXPERT}.weight_scale_2)",
        ),
        ("modelopt", set_scalar(f"{EXPERT}.weight_scale_2", float("nan")), f"{EXPERT}.weight_scale_2 holds nan"),
        ("modelopt", set_scalar(f"{EXPERT}.weight_scale_2", 0.0), f"{EXPERT}.weight_scale_2 holds 0.0"),
        ("modelopt", set_scalar(f"{EXPERT}.weight_scale_2", -1.0), f"{EXPERT}.weight_scale_2 holds -1.0"),
        ("m3.1", set_scalar(f"{EXPERT}.weight_global_scale", 0.0), f"{EXPERT}.weight_global_scale holds 0.0"),
        ("m3.1", set_scalar(f"{EXPERT}.weight_global_scale", float("inf")), f"{EXPERT}.weight_global_scale holds inf"),
        ("m3.1", set_scalar(f"{EXPERT}.weight_global_scale", float("nan")), f"{EXPERT}.weight_global_scale holds nan"),
        (
            "mxfp8",
            lambda t: t.update({MXFP8_SCALE: torch.full((64, 3), 255, dtype=torch.uint8)}),
            f"{MXFP8_SCALE} holds 255, but must be an E8M0 exponent",
        ),
        (
            "m3.1",
            lambda t: t.update({f"{EXPERT}.weight_scale": torch.full((32, 6), 0x7F).byte().view(torch.float8_e4m3fn)}),
            f"{EXPERT}.weight_scale holds NaN",
        ),
        (
            "modelopt",
            lambda t: t[f"{EXPERT}.weight_scale"].view(torch.uint8).view(-1)[3].fill_(0xB8),  # −1
            f"{EXPERT}.weight_scale holds NaN or a number with a sign",
        ),
        (
            "mxfp8",
            lambda t: t[f"{LINEAR}.weight"].view(torch.uint8).view(-1)[5].fill_(0x7F),
            f"{LINEAR}.weight holds NaN, but must be finite",
        ),
        (
            "m3.1",
            lambda t: t[f"{LINEAR}.weight"].view(torch.uint8).view(-1)[-1].fill_(0xFF),
            f"{LINEAR}.weight holds NaN, but must be finite",
        ),
        ("bf16", set_scalar(f"{LAYER}self_attn.k_scale", 0.0), f"{LAYER}self_attn.k_scale holds 0.0"),
    ],
    ids=lambda value: re.sub(r"[^\w. ]+", "", value)[-60:] if isinstance(value, str) else "",
)
def test_tensors_that_do_not_fit_are_named(copy_in, target, edit, message):
    folder = copy_in(target)
    change(folder, edit)

    with pytest.raises(CheckpointError) as caught:
        load(folder)

    assert message in caught.value.message
    assert caught.value.hint


def test_a_quantised_checkpoint_without_its_config_is_refused(copy_in):
    folder = copy_in("m3.1")
    change_json(folder / "config.json", lambda c: c.pop("quantization_config"))
    with pytest.raises(CheckpointError, match=r"missing .*weight_packed|missing .* surplus .*weight_scale_inv"):
        load(folder)


def test_a_plain_checkpoint_that_claims_to_be_quantised_is_refused(copy_in):
    folder = copy_in("bf16")
    change_json(folder / "config.json", lambda c: c.update(quantization_config={"quant_method": "mxfp8"}))
    with pytest.raises(CheckpointError, match=r"missing \(.*weight_scale_inv \(U8") as caught:
        load(folder)
    assert "MXFP8" in caught.value.hint


def test_columns_that_no_group_divides_are_refused_by_name(copy_in):
    folder = copy_in("bf16")
    change_json(folder / "config.json", lambda c: c.update(quantization_config={"quant_method": "mxfp8"}))
    change_json(folder / "config.json", lambda c: c["text_config"].update(dense_intermediate_size=152))
    with pytest.raises(ConfigError, match=r"layers\.0\.mlp\.down_proj has 152 columns, but mxfp8 .* groups of 32"):
        load(folder)


def test_a_row_that_belongs_to_neither_half_of_fused_experts_is_refused(copy_in):
    source = copy_in("bf16")
    stem = f"{LAYER}block_sparse_moe.experts."

    def fuse(tensors):
        halves = [[tensors.pop(f"{stem}{e}.{w}.weight") for w in ("w1", "w3")] for e in range(3)]
        odd = torch.ones(1, 96, dtype=torch.bfloat16)
        tensors[f"{stem}gate_up_proj"] = torch.stack([torch.cat([*half, odd]) for half in halves])

    change(source, fuse)
    with pytest.raises(CheckpointError, match=r"experts\.gate_up_proj is \[33, 96\], expected \[32, 96\]"):
        load(source)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b'{"weight_map": {"a": "../other/model.safetensors"}}', "names '../other/model.safetensors' in weight_map"),
        (b'{"weight_map": {"a": "/tmp/model.safetensors"}}', "must name files of its own folder"),
        (b'{"weight_map": {"a": 1}}', "names 1 in weight_map"),
        (b'{"weight_map": {"a": "' + b"a" * 300 + b'"}}', "lacks 1 of 1 shards"),
        (b"\xff", "is not a safetensors index"),
        (b"[" * 100_000, "is not a safetensors index"),
    ],
    ids=["up", "absolute", "number", "long", "no-text", "deep"],
)
def test_a_broken_index_is_refused(copy_in, index, message):
    folder = copy_in("bf16")
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        load(folder)
    assert caught.value.hint


def test_a_surplus_name_cannot_break_the_line(copy_in):
    folder = copy_in("bf16")
    change(folder, lambda t: t.update({"a\n\x1b[31mb": torch.ones(1)}))
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("text", ['{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}", None], ids=["deep", "long", "folder"])
def test_a_config_that_cannot_be_read_is_refused(copy_in, text):
    path = copy_in("bf16") / "config.json"
    path.unlink()
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json (cannot be read|is not valid JSON)"):
        load(path.parent)


def test_a_broken_expression_in_the_map_is_refused(copy_in):
    folder = copy_in("modelopt")
    (folder / "hf_quant_config.json").unlink()
    change_json(
        folder / "config.json",
        lambda c: c["quantization_config"]["quantized_layers"].update({"re:(": {"quant_algo": "NVFP4"}}),
    )
    with pytest.raises(ConfigError, match=r"has 're:\(' in quantization_config\.quantized_layers, which is no valid"):
        load(folder)
