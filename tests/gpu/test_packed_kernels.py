"""The Triton kernels on packed weights on a GPU: against fp64, the same bits whatever the batch, no host in between."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from tamis.kernels import linear, moe, registry
from tests.kernels.packed_cases import (
    FACTORS,
    LINEAR,
    LOST,
    MOE,
    LinearCase,
    MoECase,
    linear_errors,
    moe_errors,
    moe_inputs,
    quantized,
)

BOUND = 1e-2
TOP_K = {"random": 4, "one expert": 2}
# Sizes at which the tiles of long prompts have full ones, remainders and a ragged edge.
WIDE = {
    f"{routed}+{shared} {tokens} tokens {routing}": MoECase(
        routed, shared, tokens, routing, hidden=512, inner=384, shared_inner=256, experts=8, top_k=TOP_K[routing]
    )
    for routed, shared in (("nvfp4", "mxfp8"), ("mxfp8", "mxfp8"), ("plain", "mxfp8"), ("nvfp4", "plain"))
    for tokens, routing in ((1, "random"), (65, "random"), (700, "random"), (1500, "random"), (1500, "one expert"))
}
WIDE_LINEAR = {f"{f} {t}x1000x512": LinearCase(f, t, 1000, 512) for f in ("mxfp8", "nvfp4") for t in (1, 17, 65, 700)}


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty returns NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", [*LINEAR, *WIDE_LINEAR])
def test_linear_equals_fp64(name):
    case = {**LINEAR, **WIDE_LINEAR}[name]
    assert linear_errors(case, "cuda")["error"] < BOUND


@pytest.mark.parametrize("name", [*MOE, *WIDE])
def test_mixture_equals_fp64_and_keeps_every_factor(name):
    errors = moe_errors({**MOE, **WIDE}[name], "cuda")
    assert errors["error"] < BOUND
    # A single token's two weights may happen to lie close to equal ones.
    lost = [factor for factor in LOST if factor != "weights" or "1 tokens" not in name]
    assert all(errors[f"without {factor}"] > 5 * BOUND for factor in lost), errors


def test_every_code_and_scale_is_unpacked_exactly():
    """All 16 and 254 finite codes under many scales, subnormal ones included, through the product with one-hot rows."""
    from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight

    x = torch.eye(256, device="cuda").bfloat16()
    codes = torch.arange(256, device="cuda").repeat(126, 1).to(torch.uint8)
    e4m3 = torch.arange(1, 127, device="cuda").to(torch.uint8)[:, None]
    nvfp4 = NVFP4Weight(
        codes[:, :128].contiguous(),
        e4m3.repeat(1, 16).view(torch.float8_e4m3fn),
        torch.ones(126, device="cuda"),
    )
    finite = torch.where((codes & 127) == 127, 0, codes)
    mxfp8 = MXFP8Weight(finite.view(torch.float8_e4m3fn), (e4m3 % 124 + 50).repeat(1, 8))
    for weight in (nvfp4, mxfp8):
        assert torch.equal(linear.linear(x, weight), weight.dequantize(torch.bfloat16).T)


def test_a_token_has_the_same_bits_alone_and_among_many():
    case = MoECase("nvfp4", "mxfp8", 1500, hidden=512, inner=384, shared_inner=256, experts=8, top_k=4)
    inputs = moe_inputs(case, "cuda")
    together = moe.moe(**inputs, **FACTORS)
    for i in (0, 77, 1499):
        one = {**inputs, **{name: inputs[name][i : i + 1] for name in ("x", "expert_ids", "weights")}}
        assert torch.equal(moe.moe(**one, **FACTORS)[0], together[i])
    weight = quantized(torch.randn(1000, 512, device="cuda"), "mxfp8")
    rows = linear.linear(inputs["x"], weight)
    assert torch.equal(linear.linear(inputs["x"][5:6], weight)[0], rows[5])


def test_mixture_can_be_captured_and_replayed_with_another_routing():
    inputs = moe_inputs(MoECase("nvfp4", "mxfp8", 9, hidden=512, inner=384, shared_inner=256, experts=8), "cuda")
    moe.moe(**inputs, **FACTORS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = moe.moe(**inputs, **FACTORS)
    inputs["expert_ids"].copy_(inputs["expert_ids"].flip(0))
    graph.replay()
    assert torch.equal(captured, moe.moe(**inputs, **FACTORS))


def test_the_registry_finds_the_kernels():
    assert registry.select("linear", "cuda", "nvfp4").name == "triton"
    assert registry.select("moe", "cuda", "nvfp4+mxfp8").name == "triton"
