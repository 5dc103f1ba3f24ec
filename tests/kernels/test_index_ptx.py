"""The PTX that unpacks index keys, run instruction by instruction on a CPU: every code under every scale, exactly."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from tamis.kernels import nvfp4
from tests.kernels.ptx import Registers, half_values, halves, run_ptx

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def unpacked(registers: Registers, dtype: torch.dtype) -> torch.Tensor:
    """Values 0…7 of the first word, then of the second: [N, 16] fp64."""
    columns = [[half_values(half, dtype) for half in halves(registers[f"${i}"])] for i in range(8)]
    return torch.stack([columns[j][word] for word in (0, 1) for j in range(8)], dim=1)


@pytest.fixture
def codes() -> torch.Tensor:
    """[256 scales · 16, 8 bytes] with every code everywhere."""
    codes = torch.randint(0, 256, (256, 16, 8), dtype=torch.uint8)
    codes[:, :, 0] = torch.arange(16, dtype=torch.uint8) * 17
    codes[:, :, 1] = torch.arange(16, dtype=torch.uint8) * 16
    codes[:, :, 6] = torch.arange(16, dtype=torch.uint8)
    return codes.view(-1, 8)


SCALES = torch.arange(256, dtype=torch.uint8).repeat_interleave(16)


def words_of(codes: torch.Tensor) -> np.ndarray:
    return codes.view(torch.int32).numpy().view(np.uint32).astype(np.uint64)


def want(codes: torch.Tensor, contract: str) -> torch.Tensor:
    return nvfp4.dequantize(codes, SCALES[:, None].view(torch.float8_e4m3fn), contract).double()


def test_nvfp4_exact(codes):
    from tamis.kernels.index_score.triton import _EXACT_PTX, _FACTOR_PTX, _UNDO

    factor = run_ptx(_FACTOR_PTX.value, {"$1": SCALES.numpy().astype(np.uint64)})["$0"]
    words = words_of(codes)

    got = run_ptx(_EXACT_PTX.value, {"$8": words[:, 0], "$9": words[:, 1], "$10": factor, "$11": factor})

    torch.testing.assert_close(
        unpacked(got, torch.bfloat16) * _UNDO.value, want(codes, "exact"), rtol=0, atol=0, equal_nan=True
    )


def test_nvfp4_e4m3(codes):
    from tamis.kernels.index_score.triton import _E4M3_PTX, _MAGNITUDES_PTX

    table = run_ptx(_MAGNITUDES_PTX.value, {"$2": SCALES.numpy().astype(np.uint64)})
    words = words_of(codes)

    got = run_ptx(_E4M3_PTX.value, {"$8": words[:, 0], "$9": words[:, 1], "$10": table["$0"], "$12": table["$1"]})

    torch.testing.assert_close(unpacked(got, torch.float16), want(codes, "e4m3"), rtol=0, atol=0, equal_nan=True)


def test_fp8():
    from tamis.kernels.index_score.triton import _FP8_PTX

    codes = torch.arange(256, dtype=torch.uint8).view(16, 16)
    words = codes.view(torch.int64).numpy().view(np.uint64)

    got = run_ptx(_FP8_PTX.value, {"$8": words[:, 0], "$9": words[:, 1]})

    torch.testing.assert_close(
        unpacked(got, torch.bfloat16), codes.view(torch.float8_e4m3fn).double(), rtol=0, atol=0, equal_nan=True
    )
