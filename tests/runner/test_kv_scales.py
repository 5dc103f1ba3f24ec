"""k_scale and v_scale: what a quantised cache holds is divided by them, what is read is multiplied back."""

from __future__ import annotations

import pytest
import torch

from tamis.attention.msa import SelectionRule, StepAttention
from tamis.config import EngineConfig
from tamis.models.config import parse_config
from tamis.runner.load import load_engine
from tests.models.oracle import make_pool
from tests.models.test_reference import step_tables
from tests.runner.small_checkpoint import CONFIG, LAYER, change, change_json

CONTEXTS = [200, 3]
K_SCALE, V_SCALE = 0.0371, 12.7  # no powers of two
LAYERS = {0: "full", 1: "msa"}


def attend(layer: int, kv_format: str, kv_scales: dict, magnitude: float = 1.0) -> tuple[torch.Tensor, StepAttention]:
    """[T, heads, dim] of random keys and values, values `magnitude` large, over two requests."""
    config = parse_config(CONFIG)
    generator = torch.Generator().manual_seed(4)

    def draw(heads: int) -> torch.Tensor:
        return torch.randn(sum(CONTEXTS), heads, config.head_dim, generator=generator)

    q, k, v = draw(config.num_heads), draw(config.num_kv_heads), draw(config.num_kv_heads) * magnitude
    index = (draw(config.index_num_heads), draw(1)[:, 0]) if config.sparse_layers[layer] else (None, None)
    pool = make_pool(config, 5, kv_format, "float32")
    rule = SelectionRule(config.topk_blocks, config.init_blocks, config.local_blocks)
    attention = StepAttention(pool, step_tables(CONTEXTS), rule, config.head_dim**-0.5, kv_scales=kv_scales)
    return attention.attend(layer, q, k, v, *index), attention


@pytest.mark.parametrize("layer", LAYERS, ids=LAYERS.values())
@pytest.mark.parametrize(("kv_format", "tolerance"), [("float32", 1e-5), ("fp8", 0.1), ("nvfp4", 0.3)])
def test_scales_cancel_out(layer, kv_format, tolerance):
    want, _ = attend(layer, "float32", {})
    got, _ = attend(layer, kv_format, {layer: (K_SCALE, V_SCALE)})
    assert float((got - want).norm() / want.norm()) < tolerance


def test_lanes_hold_the_scaled_values():
    _, plain = attend(1, "float32", {})
    _, scaled = attend(1, "float32", {1: (K_SCALE, V_SCALE)})
    written = plain.tables.slots
    for lane in (0, 1):
        a, b = (x.pool.kv_lanes(1)[lane].codes for x in (plain, scaled))
        a, b = (t.transpose(1, 2).flatten(0, 1)[written] for t in (a, b))
        torch.testing.assert_close(b, a / (K_SCALE, V_SCALE)[lane], rtol=1e-5, atol=1e-6)


def test_values_beyond_a_formats_range_survive_with_a_scale_alone():
    want, _ = attend(1, "float32", {}, magnitude=2000.0)
    without, _ = attend(1, "fp8", {}, magnitude=2000.0)
    scaled, _ = attend(1, "fp8", {1: (1.0, 32.0)}, magnitude=2000.0)
    assert float((without - want).norm() / want.norm()) > 0.3
    assert float((scaled - want).norm() / want.norm()) < 0.1


def test_layers_without_scales_are_untouched():
    assert torch.equal(attend(1, "fp8", {0: (K_SCALE, V_SCALE)})[0], attend(1, "fp8", {})[0])


@pytest.mark.parametrize(
    ("names", "cache", "used"),
    [
        (("k_scale", "v_scale"), "auto", True),
        (("k_proj.k_scale", "v_proj.v_scale"), "fp8", True),
        (("attn.k_scale", "attn.v_scale"), "nvfp4", True),
        (("k_scale", "v_scale"), "bfloat16", False),
    ],
    ids=["auto", "modelopt-names", "vllm-names", "bf16-cache"],
)
def test_a_checkpoints_scales_reach_a_quantised_cache(copy_in, names, cache, used):
    folder = copy_in("m3.1")
    k_scale, v_scale = (torch.tensor(s) for s in (K_SCALE, V_SCALE))
    change(
        folder, lambda t: t.update({f"{LAYER}self_attn.{names[0]}": k_scale, f"{LAYER}self_attn.{names[1]}": v_scale})
    )
    change_json(folder / "config.json", lambda c: c["quantization_config"].update(kv_cache_quant_algo="FP8"))
    config = EngineConfig(
        model=str(folder), device="cpu", kv_cache_dtype=cache, num_blocks_override=4, max_model_len=512
    )

    runner, info = load_engine(config, lambda stage, percent: None)

    runner.shutdown()
    assert runner.kv_scales == ({1: (pytest.approx(K_SCALE), pytest.approx(V_SCALE))} if used else {})
    assert ("KV scales in 1 layers" in info.card["kv cache"]) == used
    assert info.card["kv cache"].split(",")[0] == {"auto": "fp8"}.get(cache, cache)
