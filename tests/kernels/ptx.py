"""A few PTX instructions on arrays of 32-bit registers, so that a kernel's inline assembly runs on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import torch

Registers = dict[str, np.ndarray]


def half_values(bits: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """16-bit patterns of a type → fp64."""
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(dtype).double()


def half_bits(values: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
    """fp64 → 16-bit patterns of a type, rounded to nearest even."""
    return values.to(dtype).view(torch.int16).numpy().view(np.uint16).astype(np.uint64)


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Low and high 16 bits."""
    return x & 0xFFFF, x >> np.uint64(16)


def permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray | int) -> np.ndarray:
    """prmt.b32: four bytes out of (a, b); a selector's top bit spreads the byte's sign over it."""
    source, out = a | b << np.uint64(32), np.zeros_like(a | b)
    for i in range(4):
        pick = np.asarray(selector, np.uint64) >> np.uint64(4 * i) & np.uint64(15)
        byte = source >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        byte = np.where(pick & np.uint64(8), np.where(byte >> np.uint64(7), 0xFF, 0), byte)
        out |= byte.astype(np.uint64) << np.uint64(8 * i)
    return out


def logic(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    """lop3.b32: bit by bit the table's entry a·4 + b·2 + c."""
    out = np.zeros_like(a | b | c)
    for entry in range(8):
        if table >> entry & 1:
            hit = np.uint64(0xFFFFFFFF)
            for bits, shift in ((a, 2), (b, 1), (c, 0)):
                hit = hit & (bits if entry >> shift & 1 else ~bits & np.uint64(0xFFFFFFFF))
            out |= hit
    return out


def multiply_pairs(a: np.ndarray, b: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Products of two 16-bit numbers in a register."""
    low, high = (
        half_bits(half_values(x, dtype) * half_values(y, dtype), dtype)
        for x, y in zip(halves(a), halves(b), strict=True)
    )
    return low | high << np.uint64(16)


def float_bits(values: torch.Tensor) -> np.ndarray:
    """fp64 → fp32 patterns."""
    return values.float().view(torch.int32).numpy().view(np.uint32).astype(np.uint64)


def float_values(bits: np.ndarray) -> torch.Tensor:
    """fp32 patterns → fp64."""
    return torch.from_numpy(bits.astype(np.uint32).view(np.int32)).view(torch.float32).double()


def from_e4m3_pair(pair: np.ndarray) -> np.ndarray:
    """cvt.rn.f16x2.e4m3x2."""
    values = [
        torch.from_numpy((pair >> np.uint64(8 * i) & np.uint64(0xFF)).astype(np.uint8)).view(torch.float8_e4m3fn)
        for i in (0, 1)
    ]
    low, high = (half_bits(v.double(), torch.float16) for v in values)
    return low | high << np.uint64(16)


def to_e4m3_pair(pair: np.ndarray) -> np.ndarray:
    """cvt.rn.satfinite.e4m3x2.f16x2."""
    low, high = (
        half_values(x, torch.float16).float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        for x in halves(pair)
    )
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(8)


_MASK = np.uint64(0xFFFFFFFF)
_OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "shl.b32": lambda a, b: a << b & _MASK,
    "shr.u32": lambda a, b: a >> b,
    "and.b32": lambda a, b: a & b,
    "prmt.b32": permute,
    "lop3.b32": lambda a, b, c, table: logic(a, b, c, int(table[0])),
    "mul.rn.bf16x2": lambda a, b: multiply_pairs(a, b, torch.bfloat16),
    "mul.rn.f16x2": lambda a, b: multiply_pairs(a, b, torch.float16),
    "mul.f32": lambda a, b: float_bits(float_values(a) * float_values(b)),
    "cvt.u16.u32": lambda a: a & np.uint64(0xFFFF),
    "cvt.f32.f16": lambda a: float_bits(half_values(a, torch.float16)),
    "cvt.rn.f16x2.e4m3x2": from_e4m3_pair,
    "cvt.rn.satfinite.e4m3x2.f16x2": to_e4m3_pair,
    # The first operand is the high half.
    "cvt.rn.bf16x2.f32": lambda a, b: (
        half_bits(float_values(b), torch.bfloat16) | half_bits(float_values(a), torch.bfloat16) << np.uint64(16)
    ),
}


def run_ptx(text: str, inputs: Registers) -> Registers:
    """All registers after a text of straight-line PTX, one scope, on the given ones.

    Raises:
        AssertionError: an instruction that is not known here.
    """
    registers = dict(inputs)

    def value(operand: str) -> np.ndarray:
        if operand in registers:
            return registers[operand]
        if operand.startswith("0f"):
            return np.array([int(operand[2:], 16)], np.uint64)
        return np.array([int(operand, 0)], np.uint64)

    body = text.strip()
    assert body.startswith("{") and body.endswith("}")
    for instruction in body[1:-1].split(";"):
        op, _, rest = instruction.strip().partition(" ")
        if op in ("", ".reg"):
            continue
        operands = [o.strip() for o in re.split(r",(?![^{]*})", rest)]
        if op in ("mov.b32", "mov.b64"):
            width = np.uint64(16 if op == "mov.b32" else 32)
            target, source = operands
            if target.startswith("{"):
                low, high = (o.strip() for o in target[1:-1].split(","))
                registers[low] = value(source) & (np.uint64(1) << width) - np.uint64(1)
                registers[high] = value(source) >> width
            elif source.startswith("{"):
                low, high = (o.strip() for o in source[1:-1].split(","))
                registers[target] = value(low) | value(high) << width
            else:
                registers[target] = value(source)
            continue
        assert op in _OPERATIONS, f"an instruction that is not known here: {instruction}"
        registers[operands[0]] = _OPERATIONS[op](*map(value, operands[1:]))
    return registers
