"""`linear` on packed weights: the product of the matrix that the codes stand for, in any number of rows."""

from __future__ import annotations

import pytest
import torch

from tamis.kernels.linear import linear, reference
from tamis.kernels.packed_weight import quantize_mxfp8, quantize_nvfp4

QUANTIZERS = {"mxfp8": quantize_mxfp8, "nvfp4": quantize_nvfp4}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3, 17, 65])
@pytest.mark.parametrize("format", QUANTIZERS)
def test_torch_path_equals_the_product_of_the_unpacked_matrix(format, rows, dtype, bound):
    x = torch.randn(rows, 96).to(dtype)
    weight = QUANTIZERS[format](torch.randn(37, 96) * 0.1)
    got = linear(x, weight)
    assert got.dtype == dtype
    assert relative_error(got, reference.linear(x, weight)) < bound


@pytest.mark.parametrize("format", QUANTIZERS)
def test_a_row_has_the_same_bits_alone_and_among_others(format):
    x = torch.randn(29, 128)
    weight = QUANTIZERS[format](torch.randn(48, 128))
    together = linear(x, weight)
    alone = torch.cat([linear(x[i : i + 1], weight) for i in range(len(x))])
    assert torch.equal(alone, together)


def test_leading_dims_are_kept():
    weight = quantize_mxfp8(torch.randn(5, 32))
    x = torch.randn(2, 3, 32)
    assert torch.equal(linear(x, weight), linear(x.view(6, 32), weight).view(2, 3, 5))
