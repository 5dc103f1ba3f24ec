"""Layers hold packed weights as buffers: seen by state dicts and moves, joined and cut without losing a scale."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tamis.kernels.packed_weight import dense, quantize_mxfp8, quantize_nvfp4
from tamis.layers.linear import Linear
from tamis.layers.mlp import GatedMLP
from tamis.layers.moe import Experts
from tamis.layers.weight import allocate, held_weights, join, rows, weight_of

QUANTIZE = {"mxfp8": quantize_mxfp8, "nvfp4": quantize_nvfp4, "plain": lambda values: values}
FIELDS = {"mxfp8": {"codes", "scales"}, "nvfp4": {"codes", "scales", "row_scales"}}


@pytest.mark.parametrize("packing", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("shape", [(5, 96), (3, 7, 32)], ids=str)
def test_a_packed_matrix_is_made_of_named_buffers(packing, shape):
    module = nn.Module()
    allocate(module, "weight", shape, packing)
    values = QUANTIZE[packing](torch.randn(shape))
    for name, tensor in values.tensors().items():
        getattr(module, f"weight_{name}").copy_(tensor)

    assert set(module.state_dict()) == {f"weight_{field}" for field in FIELDS[packing]}
    assert not list(module.parameters())
    held = weight_of(module, "weight", packing)
    assert held.shape == shape
    assert torch.equal(dense(held, torch.float32), values.dequantize())


def test_a_plain_matrix_is_a_parameter_of_the_same_name():
    linear = Linear(6, 4)
    assert [name for name, _ in linear.named_parameters()] == ["weight"]
    assert linear.matrix is linear.weight


@pytest.mark.parametrize("packing", ["plain", "mxfp8", "nvfp4"])
def test_joined_matrices_can_be_cut_again(packing):
    parts = [QUANTIZE[packing](torch.randn(n, 64) * n) for n in (3, 1, 8)]  # each with a global scale of its own
    joined = join(parts)
    assert joined is not None and tuple(joined.shape) == (12, 64)
    for part, (start, stop) in zip(parts, ((0, 3), (3, 4), (4, 12)), strict=True):
        cut = rows(joined, start, stop)
        assert torch.equal(dense(cut, torch.float32), dense(part, torch.float32))


def test_matrices_in_different_formats_are_not_joined():
    values = torch.randn(4, 64)
    assert join([values, quantize_mxfp8(values)]) is None
    assert join([quantize_mxfp8(values), values]) is None
    assert join([quantize_mxfp8(values), quantize_nvfp4(values)]) is None


@pytest.mark.parametrize("packing", ["mxfp8", "nvfp4"])
def test_a_packed_linear_computes_with_its_values(packing):
    values = QUANTIZE[packing](torch.randn(9, 96))
    linear = Linear(96, 9, packing)
    linear.stand_for(values)
    x = torch.randn(11, 96)
    torch.testing.assert_close(linear(x), x @ values.dequantize().T, rtol=1e-5, atol=1e-5)


def test_every_matrix_of_a_model_is_found():
    model = nn.Sequential(
        Linear(32, 8, "mxfp8"), GatedMLP(32, 64, 1.7, 7.0, ("nvfp4", "plain")), Experts(32, 16, 3, 1.7, 7.0)
    )
    found = {(type(module).__name__, name): tuple(weight.shape) for module, name, weight in held_weights(model[0])}
    assert found == {("Linear", "weight"): (8, 32)}
    shapes = sorted(tuple(weight.shape) for _, _, weight in held_weights(model))
    assert shapes == [(3, 32, 16), (3, 32, 32), (8, 32), (32, 64), (128, 32)]
