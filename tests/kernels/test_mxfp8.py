"""MXFP8 codec: the slow reference bit for bit on random and edge values, exactness, saturation."""

from __future__ import annotations

import pytest
import torch

from tamis.kernels import mxfp8
from tamis.kernels.mxfp8 import reference


def check_against_reference(x: torch.Tensor) -> None:
    codes, scales = mxfp8.quantize(x)
    want_codes, want_scales = reference.quantize(x.tolist())
    assert codes.view(torch.uint8).tolist() == want_codes
    assert scales.tolist() == want_scales
    want = torch.tensor(reference.dequantize(want_codes, want_scales))
    assert torch.equal(mxfp8.dequantize(codes, scales).view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 37.0, 1e5, 1e30])
def test_codec_equals_the_reference_on_random_values(scale):
    check_against_reference(torch.randn(160) * scale)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(32),
        -torch.zeros(32),
        torch.cat([torch.arange(-16.0, 16.0) + 0.5, torch.tensor([448.0, 464.0, 479.0] + [1.0625] * 29)]),
        torch.tensor([2.0**-e for e in range(32)]),
        torch.tensor([511.9] + [-449.0] * 31),
    ],
    ids=["zeros", "minus-zeros", "ties-and-top", "powers-of-two", "saturation"],
)
def test_codec_equals_the_reference_on_edges(x):
    check_against_reference(x)


def test_every_finite_code_is_read_exactly_under_every_scale():
    codes = torch.arange(256, dtype=torch.uint8).repeat(255, 1)
    codes[(codes & 127) == 127] = 0
    scales = torch.arange(255, dtype=torch.uint8)[:, None].repeat(1, 8)
    want = codes.view(torch.float8_e4m3fn).double() * torch.exp2(scales.double() - 127).repeat_interleave(32, dim=1)
    # The largest code under the largest scales exceeds fp32.
    assert torch.equal(mxfp8.dequantize(codes.view(torch.float8_e4m3fn), scales), want.float())


def test_what_was_read_quantises_to_the_same_values():
    x = torch.randn(5, 3, 64) * 0.02
    once = mxfp8.dequantize(*mxfp8.quantize(x))
    assert torch.equal(mxfp8.dequantize(*mxfp8.quantize(once)), once)
    assert float((once - x).norm() / x.norm()) < 0.04
