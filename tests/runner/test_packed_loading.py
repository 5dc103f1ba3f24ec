"""Every stored format loads to the numbers that its formulas give, packed or unpacked, and to the same function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tamis.config import EngineConfig
from tamis.kernels.packed_weight import dense
from tamis.models.config import read_config
from tamis.models.m3 import M3ForCausalLM
from tamis.models.quantization import LayerFormats
from tamis.runner import load
from tamis.runner.load import load_engine
from tamis.runner.targets import linear_targets
from tamis.runner.weights import build_model, load_dummy, load_weights
from tests.models.oracle import our_run
from tests.runner.small_checkpoint import LAYER, LINEAR, change, change_json, tensors_of, values_of

FORMATS = ["m3.1", "modelopt", "mxfp8", "bf16"]
TOKENS = torch.randint(0, 97, (500,), generator=torch.Generator().manual_seed(0)).tolist()


def model_of(folder: Path, *, packed: bool, fuse: bool = True) -> M3ForCausalLM:
    config = read_config(folder)
    held = config if packed else dataclasses.replace(config, weight_formats=(LayerFormats(),) * config.num_layers)
    model = build_model(held, torch.float32, torch.device("cpu"))
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.view(torch.uint8).fill_(0xFF)  # whatever loading forgets is NaN
    load_weights(model, folder, lambda stage, percent: None, config)
    if fuse:
        model.fuse_projections()
    return model


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("target", FORMATS)
def test_every_linear_has_the_values_of_the_formula(stored_in, target, packed):
    folder = stored_in(target)
    tensors = tensors_of(folder)

    held = dict(linear_targets(model_of(folder, packed=packed)))

    assert len(held) == 3 * 4 + 2 * 2 + 3 + 2 * (3 + 3 * 3)
    for name, weight in held.items():
        assert isinstance(weight, Tensor) == (target == "bf16" or not packed), name
        # NVFP4's two scales are multiplied in another order in memory: the last place may differ.
        torch.testing.assert_close(dense(weight, torch.float32), values_of(tensors, name), rtol=2e-7, atol=0)


@pytest.mark.parametrize("target", FORMATS[:3])
def test_packed_and_unpacked_are_one_function(stored_in, target):
    folder = stored_in(target)

    packed, unpacked = (our_run(model_of(folder, packed=p), TOKENS)[0] for p in (True, False))

    # Plain weights have a kernel of their own, which sums in another order.
    torch.testing.assert_close(packed, unpacked, rtol=1e-4, atol=1e-4)


def test_projections_in_one_format_are_joined_and_others_stay_apart(copy_in):
    folder = copy_in("modelopt")
    joined = model_of(folder, packed=True, fuse=False)
    apart = our_run(joined, TOKENS)[0]
    joined.fuse_projections()
    assert all(layer.self_attn.fused_weight is not None for layer in joined.layers)
    assert torch.equal(our_run(joined, TOKENS)[0], apart)

    def leave_k_plain(tensors: dict[str, Tensor]) -> None:
        values = values_of(tensors, LINEAR)
        del tensors[f"{LINEAR}.weight_scale_inv"]
        tensors[f"{LINEAR}.weight"] = values.bfloat16()

    def say_so(quantization: dict) -> None:
        quantization = quantization.get("quantization", quantization)
        del quantization["quantized_layers"][LINEAR]
        quantization["exclude_modules"].append(LINEAR)

    change(folder, leave_k_plain)
    change_json(folder / "hf_quant_config.json", say_so)
    change_json(folder / "config.json", lambda c: say_so(c["quantization_config"]))
    mixed = model_of(folder, packed=True)
    assert [layer.self_attn.fused_weight is None for layer in mixed.layers] == [False, True, False]
    torch.testing.assert_close(our_run(mixed, TOKENS)[0], apart, rtol=1e-4, atol=1e-5)


def test_hf_quant_config_alone_says_the_formats(copy_in):
    folder = copy_in("modelopt")
    before = read_config(folder)
    change_json(folder / "config.json", lambda c: c.pop("quantization_config"))
    assert read_config(folder) == before


def fuse_experts(tensors: dict[str, Tensor]) -> None:
    """Store layer 1's experts as transformers does: one tensor of all, gate rows before up rows."""
    stem, new = f"{LAYER}block_sparse_moe.experts.", "model.language_model.layers.1.mlp.experts."
    for part, suffix in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
        dtype = tensors[f"{stem}0.w1.{part}"].dtype
        w1, w3, w2 = (
            torch.stack([tensors.pop(f"{stem}{e}.{w}.{part}").view(torch.uint8) for e in range(3)])
            for w in ("w1", "w3", "w2")
        )
        tensors[f"{new}gate_up_proj{suffix}"] = torch.cat([w1, w3], dim=1).view(dtype)
        tensors[f"{new}down_proj{suffix}"] = w2.view(dtype)


def test_fused_experts_with_scales_load(copy_in, stored_in):
    folder = copy_in("mxfp8")
    want = our_run(model_of(folder, packed=True), TOKENS)[0]
    change(folder, fuse_experts)
    assert not any(f"{LAYER}block_sparse_moe.experts" in name for name in tensors_of(folder))
    assert torch.equal(our_run(model_of(folder, packed=True), TOKENS)[0], want)


def test_mxfp8_scales_under_modelopts_name_load(copy_in):
    folder = copy_in("modelopt")
    want = our_run(model_of(folder, packed=True), TOKENS)[0]

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in [n for n in tensors if n.endswith(".weight_scale_inv")]:
            tensors[name.removesuffix("_inv")] = tensors.pop(name)

    change(folder, rename)
    assert torch.equal(our_run(model_of(folder, packed=True), TOKENS)[0], want)


def test_no_input_scales_are_needed(copy_in):
    folder = copy_in("m3.1")
    want = our_run(model_of(folder, packed=True), TOKENS)[0]
    change(folder, lambda t: [t.pop(n) for n in list(t) if n.endswith("input_global_scale")])
    assert torch.equal(our_run(model_of(folder, packed=True), TOKENS)[0], want)


@pytest.mark.parametrize("room", ["unpacked", "packed"])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_cpu_unpacks_what_fits_beside_the_pool(
    stored_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, room: str, load_format: str
) -> None:
    free = 2**30 if room == "unpacked" else 800_000
    monkeypatch.setattr(load, "available_host_bytes", lambda: free)
    config = EngineConfig(
        model=str(stored_in("m3.1")), device="cpu", load_format=load_format, num_blocks_override=4, max_model_len=512
    )

    runner, info = load_engine(config, lambda stage, percent: None)

    try:
        parameters = {name: p for name, p in runner.model.named_parameters()}
        assert ("layers.1.mlp.experts.gate_up_proj" in parameters) == (room == "unpacked")
        assert info.card["parameters"].split()[:2] == ["0.3", "M"]
        words = "unpacked to float32" if room == "unpacked" else ", packed"
        assert info.card["weights"].startswith("MXFP8, routed experts NVFP4") and words in info.card["weights"]
        assert info.card["same tokens whatever the load"].startswith("yes")
        assert info.card["kv cache"] == "bfloat16, index bfloat16"
    finally:
        runner.shutdown()


def test_memory_is_counted_as_it_is_held(stored_in):
    config = read_config(stored_in("m3.1"))
    model = model_of(stored_in("m3.1"), packed=True)
    on_disk = sum(
        t.nbytes
        for n, t in tensors_of(stored_in("m3.1")).items()
        if ".experts." in n and not n.endswith("global_scale")
    )
    experts = sum(t.nbytes for n, t in model.state_dict().items() if ".experts." in n and not n.endswith("_row_scales"))
    assert experts == on_disk
    planned = load._weight_bytes(config, torch.float32)
    assert planned == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


def test_dummy_weights_are_the_same_for_a_seed(stored_in):
    config = read_config(stored_in("m3.1"))
    runs = []
    for seed in (1, 1, 2):
        model = build_model(config, torch.float32, torch.device("cpu"))
        load_dummy(model, seed)
        runs.append(our_run(model, TOKENS[:20])[0])
    assert torch.isfinite(runs[0]).all()
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
