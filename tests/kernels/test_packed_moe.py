"""The mixture on packed weights, against fp64 of the unpacked matrices; what a lost factor would do is shown."""

from __future__ import annotations

import pytest
import torch

from tamis.kernels import moe
from tamis.kernels.moe import reference
from tamis.kernels.packed_weight import quantize_mxfp8, quantize_nvfp4

FORMATS = {"plain": lambda w: w, "mxfp8": quantize_mxfp8, "nvfp4": quantize_nvfp4}
EXPERTS, HIDDEN, INNER, SHARED, TOP_K = 7, 64, 96, 32, 3
FACTORS = {"scale": 2.0, "alpha": 1.702, "limit": 1.5}


def case(tokens: int, routed: str, shared: str) -> dict:
    """Inputs large enough that `limit` bites, with expert 2 chosen by nobody."""
    others = torch.tensor([e for e in range(EXPERTS) if e != 2])
    ids = torch.stack([others[torch.randperm(len(others))[:TOP_K]] for _ in range(tokens)])
    weights = torch.rand(tokens, TOP_K) + 0.1
    return {
        "x": torch.randn(tokens, HIDDEN),
        "expert_ids": ids,
        "weights": weights / weights.sum(-1, keepdim=True),
        "gate_up": FORMATS[routed](torch.randn(EXPERTS, 2 * INNER, HIDDEN) * 0.3),
        "down": FORMATS[routed](torch.randn(EXPERTS, HIDDEN, INNER) * 0.3),
        "shared_gate_up": FORMATS[shared](torch.randn(2 * SHARED, HIDDEN) * 0.3),
        "shared_down": FORMATS[shared](torch.randn(HIDDEN, SHARED) * 0.3),
    }


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("tokens", [1, 3, 17, 65])
@pytest.mark.parametrize("routed, shared", [("nvfp4", "mxfp8"), ("mxfp8", "plain"), ("plain", "nvfp4")])
def test_torch_path_equals_the_reference(tokens, routed, shared):
    inputs = case(tokens, routed, shared)
    assert relative_error(moe.moe(**inputs, **FACTORS), reference.moe(**inputs, **FACTORS)) < 1e-5


@pytest.mark.parametrize("lost", ["scale", "alpha", "limit", "weights"])
def test_every_factor_shows_in_the_result(lost):
    inputs = case(9, "nvfp4", "mxfp8")
    want = reference.moe(**inputs, **FACTORS)
    factors = {**FACTORS, **({lost: {"scale": 1.0, "alpha": 1.0, "limit": 1e9}[lost]} if lost != "weights" else {})}
    if lost == "weights":
        inputs["weights"] = torch.full_like(inputs["weights"], 1.0 / TOP_K)
    assert relative_error(moe.moe(**inputs, **factors), want) > 2e-2


def test_a_token_has_the_same_bits_alone_and_among_others():
    inputs = case(19, "nvfp4", "mxfp8")
    together = moe.moe(**inputs, **FACTORS)
    per_token = ("x", "expert_ids", "weights")
    for i in range(19):
        one = {**inputs, **{name: inputs[name][i : i + 1] for name in per_token}}
        assert torch.equal(moe.moe(**one, **FACTORS)[0], together[i])


def test_plain_mixture_is_scale_times_experts_plus_shared():
    inputs = case(5, "plain", "plain")
    routed = moe.experts(
        inputs["x"],
        inputs["expert_ids"],
        inputs["weights"],
        inputs["gate_up"],
        inputs["down"],
        alpha=FACTORS["alpha"],
        limit=FACTORS["limit"],
    )
    only_shared = moe.moe(**inputs, **{**FACTORS, "scale": 0.0})
    torch.testing.assert_close(moe.moe(**inputs, **FACTORS), routed * 2.0 + only_shared, rtol=1e-4, atol=1e-5)
