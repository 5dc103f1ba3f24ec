"""NVFP4 codec: handed cases bit for bit, the slow reference on random and edge values, both contracts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tamis.kernels import nvfp4
from tamis.kernels.nvfp4 import reference

CASES = json.loads((Path(__file__).parent / "nvfp4_cases.json").read_text())


CODECS = {"served": nvfp4.dequantize, "torch": nvfp4.cpu.dequantize}


def same_bits(got: torch.Tensor, want: list[float]) -> bool:
    return torch.equal(got.view(torch.int32), torch.tensor(want).view(torch.int32))


@pytest.mark.parametrize("case", CASES, ids=[f"case{i}" for i in range(len(CASES))])
def test_codec_matches_handed_case(case):
    codes, scales = nvfp4.quantize(torch.tensor(case["x"]))
    assert codes.tolist() == case["packed"]
    assert scales.view(torch.uint8).tolist() == case["scales"]
    for dequantize in CODECS.values():
        assert same_bits(dequantize(codes, scales, "exact"), case["exact"])
        assert same_bits(dequantize(codes, scales, "e4m3"), case["e4m3"])


def midpoints() -> torch.Tensor:
    """Every code midpoint, both signs, under scales that are exact."""
    row = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    return torch.cat([row, -row]).repeat(8) * torch.tensor([2.0**e for e in range(-4, 4)]).repeat_interleave(16)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 37.0, 3e3, 1e5])
def test_codec_matches_reference_on_random_values(scale):
    x = torch.randn(128, generator=torch.Generator().manual_seed(int(scale * 7) % 1000)) * scale
    check_against_reference(x)


@pytest.mark.parametrize(
    "x", [midpoints(), torch.zeros(128), -torch.zeros(128)], ids=["midpoints", "zeros", "minus-zeros"]
)
def test_codec_matches_reference_on_edges(x):
    check_against_reference(x)


def check_against_reference(x: torch.Tensor) -> None:
    codes, scales = nvfp4.quantize(x)
    want_codes, want_scales = reference.quantize(x.tolist())
    assert codes.tolist() == want_codes
    assert scales.view(torch.uint8).tolist() == want_scales
    for contract in ("exact", "e4m3"):
        for dequantize in CODECS.values():
            got = dequantize(codes, scales, contract)
            assert same_bits(got, reference.dequantize(want_codes, want_scales, contract))


def test_unknown_contract_is_refused():
    codes, scales = nvfp4.quantize(torch.ones(16))
    with pytest.raises(ValueError, match="'e5m2'"):
        nvfp4.dequantize(codes, scales, "e5m2")
