"""One layer in each format against the published implementation, twice.

With the weights before they were quantised it is near; with the values that the stored tensors stand for it is equal.
Then one thing is lost at a time (SwiGLU's alpha and limit, the router's bias, a scale, a global scale): it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tamis.layers.mlp import GatedMLP
from tamis.layers.moe import MoE
from tamis.models.config import read_config
from tamis.models.m3 import M3ForCausalLM
from tamis.runner.convert import convert
from tamis.runner.weights import build_model, load_weights
from tests.models.oracle import Shape, oracle_model, our_run
from tests.runner.small_checkpoint import tensors_of, values_of

# Experts are chosen by their bias, which quantisation does not move: what is compared is numbers, not choices.
SHAPE = Shape(
    sparse=(True,), moe=(True,), hidden=128, intermediate=96, shared=64, dense=96, topk=16, experts=6, kv_heads=2
)
DENSE = Shape(sparse=(False,), moe=(False,), hidden=128, intermediate=96, shared=64, dense=160)
TOKENS = torch.randint(0, 97, (300,), generator=torch.Generator().manual_seed(0)).tolist()
LEAST = {"mxfp8": 0.999, "m3.1": 0.99, "modelopt": 0.99}


@dataclass(frozen=True)
class Case:
    """One layer's output (the residual stream after it), [T, hidden], and the checkpoint in one format.

    Attributes:
        original: by the published model with the weights before they were quantised.
        stored: by the published model with the values that were stored.
    """

    target: str
    folder: Path
    original: Tensor
    stored: Tensor


def layer_output(model) -> Tensor:
    """Of transformers' one layer."""
    seen: list[Tensor] = []
    hook = model.model.layers[0].register_forward_hook(lambda _m, _a, out: seen.append(out))
    with torch.no_grad():
        model(torch.tensor([TOKENS]), use_cache=False)
    hook.remove()
    return seen[0].reshape(len(TOKENS), -1)


def our_output(model: M3ForCausalLM) -> Tensor:
    """The same of our one layer."""
    seen: list[Tensor] = []
    hook = model.layers[0].register_forward_hook(lambda _m, _a, out: seen.append(out))
    our_run(model, TOKENS)
    hook.remove()
    return seen[0]


def gentle_model(shape: Shape):
    """Weights with a trained model's proportions, and both ends of SwiGLU's limit reached.

    Attention is soft, and the layer adds about as much to the stream as was in it.
    """
    model = oracle_model(shape, seed=11)
    layer = model.model.layers[0]
    model.model.embed_tokens.weight.mul_(8.0)
    for name, parameter in layer.named_parameters():
        if parameter.dim() > 1:
            parameter.mul_(2.0 if "gate_up_proj" in name else 0.07 if "down_proj" in name else 0.5)
    if shape.moe[0]:
        layer.mlp.gate.e_score_correction_bias.copy_(torch.tensor([0.0, 3.0, 0.0, 3.0, 0.0, 0.0]))
    return model


def store_values(model, tensors: dict[str, Tensor]) -> None:
    """Give the published model the values that a checkpoint's tensors stand for."""
    stem = "language_model.model.layers.0."
    layer = model.model.layers[0]
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        getattr(layer.self_attn, part).weight.copy_(values_of(tensors, f"{stem}self_attn.{part}"))
    dense = layer.mlp
    if f"{stem}mlp.down_proj.weight" not in tensors:
        dense, name = layer.mlp.shared_experts, f"{stem}block_sparse_moe.shared_experts"
        for part in ("q", "k"):
            values = values_of(tensors, f"{stem}self_attn.index_{part}_proj")
            getattr(layer.self_attn.indexer, f"{part}_proj").weight.copy_(values)
        for expert in range(SHAPE.experts):
            w1, w2, w3 = (values_of(tensors, f"{stem}block_sparse_moe.experts.{expert}.w{i}") for i in (1, 2, 3))
            layer.mlp.experts.gate_up_proj[expert].copy_(torch.cat([w1, w3]))
            layer.mlp.experts.down_proj[expert].copy_(w2)
    else:
        name = f"{stem}mlp"
    dense.gate_up_proj.weight.copy_(torch.cat([values_of(tensors, f"{name}.{half}_proj") for half in ("gate", "up")]))
    dense.down_proj.weight.copy_(values_of(tensors, f"{name}.down_proj"))


CASES = [(SHAPE, "mxfp8"), (SHAPE, "m3.1"), (SHAPE, "modelopt"), (DENSE, "mxfp8")]


@pytest.fixture(scope="module", params=CASES, ids=["moe-mxfp8", "moe-m3.1", "moe-modelopt", "dense-mxfp8"])
def case(request, tmp_path_factory) -> Case:
    shape, target = request.param
    root = tmp_path_factory.mktemp("outputs")
    model = gentle_model(shape)
    model.save_pretrained(root / "plain")
    convert(root / "plain", root / target, target, progress=lambda stage, percent: None)
    original = layer_output(model)
    store_values(model, tensors_of(root / target))
    return Case(target, root / target, original, layer_output(model))


def packed_model(folder: Path) -> M3ForCausalLM:
    model = build_model(read_config(folder), torch.float32, torch.device("cpu"))
    load_weights(model, folder, lambda stage, percent: None)
    model.fuse_projections()
    return model


def error(got: Tensor, want: Tensor) -> float:
    """Relative, over all values."""
    return float((got - want).norm() / want.norm())


def test_one_layer_is_near_the_model_before_it_was_quantised(case):
    got = our_output(packed_model(case.folder))
    for dim, ours, theirs in ((0, got.flatten(), case.original.flatten()), (1, got, case.original)):
        cosine = torch.nn.functional.cosine_similarity(ours, theirs, dim=dim)
        assert float(cosine.mean()) >= LEAST[case.target]


def test_one_layer_equals_the_published_model_with_the_stored_values(case):
    assert error(our_output(packed_model(case.folder)), case.stored) < 1e-5


def lose_alpha(model: M3ForCausalLM) -> None:
    set_swiglu(model, alpha=1.0)


def lose_limit(model: M3ForCausalLM) -> None:
    set_swiglu(model, limit=1e9)


def set_swiglu(model: M3ForCausalLM, **values: float) -> None:
    for module in model.modules():
        if hasattr(module, "alpha") and hasattr(module, "limit"):
            for name, value in values.items():
                setattr(module, name, value)


def lose_bias(model: M3ForCausalLM) -> None:
    mlp = model.layers[0].mlp
    assert isinstance(mlp, MoE)
    mlp.gate.e_score_correction_bias.zero_()


def lose_mxfp8_scales(model: M3ForCausalLM) -> None:
    mlp = model.layers[0].mlp
    linear = (mlp if isinstance(mlp, GatedMLP) else mlp.shared_experts).down_proj
    linear.weight_scales.fill_(127)


def lose_nvfp4_scales(model: M3ForCausalLM) -> None:
    scales = model.layers[0].mlp.experts.down_proj_scales
    scales.copy_(torch.ones(scales.shape).to(scales.dtype))


def lose_global_scales(model: M3ForCausalLM) -> None:
    model.layers[0].mlp.experts.gate_up_proj_row_scales.fill_(1.0)


def swap_global_scales(model: M3ForCausalLM) -> None:
    """Gate's for up and up's for gate: they differ."""
    scales = model.layers[0].mlp.experts.gate_up_proj_row_scales
    scales.copy_(scales.roll(scales.shape[1] // 2, dims=1))


LOSSES: dict[str, list[Callable[[M3ForCausalLM], None]]] = {
    "": [lose_alpha, lose_limit, lose_mxfp8_scales],
    "moe": [lose_bias],
    "nvfp4": [lose_nvfp4_scales, lose_global_scales, swap_global_scales],
}


def test_a_path_that_loses_something_is_not_equal(case):
    kinds = ["", "moe"] if any(read_config(case.folder).moe_layers) else [""]
    kinds += ["nvfp4"] if case.target != "mxfp8" else []
    for lose in [loss for kind in kinds for loss in LOSSES[kind]]:
        model = packed_model(case.folder)
        lose(model)
        got = error(our_output(model), case.stored)
        assert not got < 1e-3, f"{lose.__name__} moves the output by {got:.1e} only"
