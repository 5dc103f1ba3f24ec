"""Packed weights as values: shape, pieces, joins and bytes, against the matrices they stand for."""

from __future__ import annotations

import pytest
import torch

from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight, dense, quantize_mxfp8, quantize_nvfp4, weight_format

QUANTIZERS = {"mxfp8": quantize_mxfp8, "nvfp4": quantize_nvfp4}
BITS = {"mxfp8": 8 + 8 / 32, "nvfp4": 4 + 8 / 16}

each_format = pytest.mark.parametrize("form", QUANTIZERS)


@each_format
def test_shape_format_and_bytes_are_those_of_the_matrices(form):
    weight = QUANTIZERS[form](torch.randn(3, 7, 64))
    assert weight.shape == (3, 7, 64)
    assert weight_format(weight) == form
    row_scales = 3 * 7 * 4 if form == "nvfp4" else 0
    assert weight.num_bytes == 3 * 7 * 64 * BITS[form] / 8 + row_scales


@each_format
def test_an_expert_of_a_stack_is_its_matrix(form):
    stack = QUANTIZERS[form](torch.randn(3, 7, 64))
    for expert in range(3):
        assert torch.equal(stack[expert].dequantize(), stack.dequantize()[expert])


@each_format
def test_joined_matrices_stand_one_below_the_other(form):
    # Sizes far apart: NVFP4 gives each matrix a global scale of its own.
    parts = [QUANTIZERS[form](torch.randn(2, rows, 32) * size) for rows, size in ((5, 1.0), (3, 1e-3), (1, 50.0))]
    joined = type(parts[0]).cat(parts)
    assert joined.shape == (2, 9, 32)
    assert torch.equal(joined.dequantize(), torch.cat([p.dequantize() for p in parts], dim=1))


@each_format
def test_quantising_keeps_close_to_the_matrix(form):
    matrix = torch.randn(20, 256) * 0.02
    error = float((QUANTIZERS[form](matrix).dequantize() - matrix).norm() / matrix.norm())
    assert 0.0 < error < {"mxfp8": 0.04, "nvfp4": 0.12}[form]


def test_a_matrix_of_zeros_stays_one():
    for quantize in QUANTIZERS.values():
        assert torch.equal(quantize(torch.zeros(2, 3, 32)).dequantize(), torch.zeros(2, 3, 32))


@pytest.mark.parametrize("size", [1e-33, 1e-35, 1e-37, 1e-41])
def test_a_matrix_of_tiny_numbers_keeps_a_scale_with_a_finite_reciprocal(size):
    matrix = torch.randn(4, 64) * size
    weight = quantize_nvfp4(matrix)
    assert (weight.row_scales > 0).all() and torch.isfinite(1.0 / weight.row_scales).all()
    # Half of the widest step between codes; where the global scale is held up, half of the least step.
    least = float(weight.row_scales[0]) * 0.25 / 512
    assert ((weight.dequantize() - matrix).abs() <= 0.2 * matrix.abs().amax() + least).all()


def test_nvfp4_multiplies_code_scale_and_row_scale():
    # Low nibble first: 3.0 (code 5) then −0.5 (code 9); scale 2, row scale 10.
    codes = torch.full((1, 8), 0x95, dtype=torch.uint8)
    weight = NVFP4Weight(codes, torch.full((1, 1), 2.0).to(torch.float8_e4m3fn), torch.tensor([10.0]))
    assert weight.dequantize().tolist() == [[60.0, -10.0] * 8]


def test_mxfp8_multiplies_code_and_power_of_two():
    weight = MXFP8Weight(torch.full((1, 32), -1.5).to(torch.float8_e4m3fn), torch.tensor([[130]], dtype=torch.uint8))
    assert weight.dequantize().tolist() == [[-12.0] * 32]


def test_a_plain_weight_of_the_dtype_asked_for_is_not_copied():
    plain = torch.randn(4, 4)
    assert dense(plain, torch.float32) is plain
    assert weight_format(plain) == "plain"
    assert dense(plain, torch.bfloat16).dtype == torch.bfloat16
