"""The PTX that unpacks weights, run instruction by instruction on a CPU: every code under every scale, exactly."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
import torch

from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def bf16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x & 0xFFFF, x >> 16


def multiply_pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    products = [bf16(x).double() * bf16(y).double() for x, y in zip(halves(a), halves(b), strict=True)]
    low, high = (p.bfloat16().view(torch.int16).numpy().view(np.uint16).astype(np.uint64) for p in products)
    return low | high << 16


def permute(a: np.ndarray, b: np.ndarray, selector: int) -> np.ndarray:
    """prmt.b32: four bytes out of (a, b); a selector's top bit spreads the byte's sign over it."""
    source, out = a | b << 32, np.zeros_like(a)
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = source >> np.uint64(8 * (pick & 7)) & 0xFF
        byte = np.where(byte >> 7, 0xFF, 0) if pick & 8 else byte
        out |= byte.astype(np.uint64) << np.uint64(8 * i)
    return out


def run_ptx(text: str, first: np.ndarray, second: np.ndarray, factors: np.ndarray) -> list[np.ndarray]:
    """$0…$7 after running the text on $8, $9, $10."""
    registers: dict[str, np.ndarray] = {"$8": first, "$9": second, "$10": factors}
    for instruction in re.split(r"[;\n]", text.strip().strip("{}")):
        op, _, rest = instruction.strip().partition(" ")
        operands = [o.strip() for o in re.sub(r"[{}]", "", rest).split(",")]
        values = [registers.get(o) for o in operands]
        match op:
            case "" | ".reg":
                continue
            case "shl.b32":
                registers[operands[0]] = values[1] << np.uint64(int(operands[2], 0)) & 0xFFFFFFFF
            case "and.b32":
                registers[operands[0]] = values[1] & int(operands[2], 0)
            case "prmt.b32":
                registers[operands[0]] = permute(values[1], values[2], int(operands[3], 0))
            case "mul.rn.bf16x2":
                registers[operands[0]] = multiply_pairs(values[1], values[2])
            case "mov.b64":
                registers[operands[0]], registers[operands[1]] = values[2] & 0xFFFFFFFF, values[2] >> 32
            case _:
                pytest.fail(f"an instruction that this test does not know: {instruction}")
    return [registers[f"${i}"] for i in range(8)]


def unpacked(text: str, words: np.ndarray, factors: torch.Tensor) -> torch.Tensor:
    """words: [N, 2], two neighbours; factors: [N] bf16 → [N, 16] fp64."""
    bits = factors.view(torch.int16).numpy().view(np.uint16).astype(np.uint64)
    registers = run_ptx(text, words[:, 0].copy(), words[:, 1].copy(), bits | bits << 16)
    columns = [[bf16(half).double() for half in halves(r)] for r in registers]
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
