"""What training rounds is what is served: the bits of packed weights and of the NVFP4 lane; gradients pass straight."""

from __future__ import annotations

import copy

import pytest
import torch

from tamis.kernels import lane
from tamis.kernels.packed_weight import quantize_mxfp8, quantize_nvfp4
from tamis.layers.moe import MoE
from tamis.train.loop import initial_state, set_quantized
from tamis.train.moe import CountingRouter, WideExperts
from tamis.train.presets import TOY
from tamis.train.quantization import QuantizedLinear, fake_cached, fake_mxfp8, fake_nvfp4, fake_query


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
def test_weights_are_rounded_as_they_are_packed(scale: float) -> None:
    weight = scale * torch.randn(3, 48, 96)
    torch.testing.assert_close(fake_mxfp8(weight[0]), quantize_mxfp8(weight[0]).dequantize(), rtol=1e-6, atol=0)
    torch.testing.assert_close(fake_nvfp4(weight), quantize_nvfp4(weight).dequantize(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_is_rounded_as_a_lane_gives_it_back(dtype: torch.dtype) -> None:
    x = torch.randn(257, 2, 128).to(dtype)
    codes, scales = lane.encode(x, "nvfp4")
    served = lane.Lane("nvfp4", codes, scales, "e4m3")
    assert torch.equal(fake_cached(x).float(), served.read(slice(None)))
    assert torch.equal(fake_query(x).float(), served.query(x))


@pytest.mark.parametrize("fake", [fake_mxfp8, fake_nvfp4, fake_cached, fake_query])
def test_gradients_pass_straight_through(fake) -> None:
    x = torch.randn(32, 64, requires_grad=True)
    toward = torch.randn(32, 64)
    (fake(x) * toward).sum().backward()
    assert torch.equal(x.grad, toward)


def test_experts_are_rounded_matrix_by_matrix() -> None:
    torch.manual_seed(1)
    plain = MoE(
        hidden_size=32,
        intermediate_size=16,
        shared_intermediate_size=32,
        num_experts=4,
        top_k=2,
        scale=2.0,
        alpha=1.702,
        limit=7.0,
    )
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    rounded, trained = copy.deepcopy(plain), copy.deepcopy(plain)
    with torch.no_grad():
        for expert in range(4):
            for half in rounded.experts.gate_up_proj[expert].chunk(2):
                half.copy_(quantize_nvfp4(half).dequantize())
            rounded.experts.down_proj[expert].copy_(quantize_nvfp4(rounded.experts.down_proj[expert]).dequantize())
    trained.gate, trained.experts = CountingRouter(trained.gate), WideExperts(trained.experts)
    trained.experts.quantized = True
    x = torch.randn(9, 32)

    torch.testing.assert_close(trained(x), rounded(x), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(trained(x), plain(x), atol=1e-3)


def test_everything_that_m31_quantises_is_rounded() -> None:
    model = initial_state(TOY, torch.device("cpu"), seed=0).model
    set_quantized(model)
    linears = {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert {name.rsplit(".", 1)[1] for name in linears} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "index_q_proj", "index_k_proj", "gate_up_proj", "down_proj")
    }
    assert not any("lm_head" in name for name in linears)
    assert all(module.quantized for module in model.modules() if isinstance(module, WideExperts))
