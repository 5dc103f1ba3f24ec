"""The PTX that unpacks weights, run instruction by instruction on a CPU: every code under every scale, exactly."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight
from tests.kernels.ptx import half_values, halves, run_ptx

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def unpacked(text: str, words: np.ndarray, factors: torch.Tensor) -> torch.Tensor:
    """words: [N, 2], two neighbours; factors: [N] bf16 → [N, 16] fp64."""
    bits = factors.view(torch.int16).numpy().view(np.uint16).astype(np.uint64)
    registers = run_ptx(text, {"$8": words[:, 0].copy(), "$9": words[:, 1].copy(), "$10": bits | bits << 16})
    columns = [[half_values(half, torch.bfloat16) for half in halves(registers[f"${i}"])] for i in range(8)]
    return torch.stack([columns[j][word] for word in (0, 1) for j in range(8)], dim=1)


def test_nvfp4_is_exact_for_every_code_and_scale():
    from tamis.kernels.packed_tile import UNDO_NVFP4, nvfp4_ptx

    scale_bytes = torch.arange(127, dtype=torch.uint8)
    codes = torch.randint(0, 256, (127, 16, 8), dtype=torch.uint8)
    codes[:, :, 0] = torch.arange(16, dtype=torch.uint8) * 17
    scales = scale_bytes[:, None, None].expand(127, 16, 1).contiguous().view(torch.float8_e4m3fn)
    want = NVFP4Weight(codes, scales, torch.ones(127, 16)).dequantize(torch.float64).view(-1, 16)
    # As `_unpack` makes the factor.
    factors = (scale_bytes.short() << 4).view(torch.bfloat16) * 2.0**120 * 2.0**119

    words = codes.view(torch.int32).numpy().view(np.uint32).astype(np.uint64).reshape(-1, 2)
    got = unpacked(nvfp4_ptx(), words, factors.repeat_interleave(16)) * UNDO_NVFP4.value

    assert torch.equal(got, want)


def test_mxfp8_is_exact_for_every_code_and_scale_in_range():
    from tamis.kernels.packed_tile import UNDO_MXFP8, mxfp8_ptx

    scale_bytes = torch.arange(50, 175, dtype=torch.uint8)
    codes = torch.arange(256, dtype=torch.uint8).view(1, 8, 32).repeat(len(scale_bytes), 1, 1)
    codes[(codes & 127) == 127] = 0
    scales = scale_bytes[:, None, None].expand(-1, 8, 1).contiguous()
    want = MXFP8Weight(codes.view(torch.float8_e4m3fn), scales).dequantize(torch.float64).view(-1, 16)
    factors = ((scale_bytes.short() + 80) << 7).view(torch.bfloat16)

    words = codes.view(torch.int64).numpy().view(np.uint64).reshape(-1, 2)
    got = unpacked(mxfp8_ptx(), words, factors.repeat_interleave(16)) * UNDO_MXFP8.value

    assert torch.equal(got, want)
