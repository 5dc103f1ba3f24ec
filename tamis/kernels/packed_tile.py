"""Device code shared by the Triton kernels of `linear` and `moe`: one tile of a weight matrix times some token rows.

Weights are the rows of the product (M of the tensor core's instruction, read from registers) and tokens its columns:
few tokens waste little, and a weight is unpacked in the very registers that feed the instruction, never written back.
What makes that cheap is the order of K:

- Codes are loaded as words of 8 values (NVFP4: int32, MXFP8: int64). The instruction wants two neighbouring columns in
  one register; taking value j of two neighbouring *words* instead gives every thread whole words, 8 or 16 bytes a load,
  and one scale for each pair of words.
- The activations have to come in the same order: within each block of 128 columns, position 16·j + i holds column
  8·i + j ("phased"). For few tokens the kernel itself reorders them; for many, whoever writes them does.
- Eight values are turned into bf16 by moving their bits in place (sign to bit 15, exponent and mantissa below), which
  leaves a power of two to make up for: some of it in the bf16 factor made from the scale, the rest in fp32 after the
  sum (`UNDO_*`), so that every intermediate value is exact in bf16. About 2.1 instructions a value.

Codes must be finite (no E4M3 NaN). E8M0 scales above 2^47 become infinite, and under those below 2^-77 the least codes
may vanish; weights that were numbers of a model have neither. Sums run in fp32 over K in one fixed order that depends
on neither the tile sizes nor the number of tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

_WORDS = tl.constexpr(16)  # words of 8 values in a phase block

# NVFP4: bits give e2m1·2^−126; factor = scale·2^119. MXFP8: bits give e4m3·2^−120; factor = 2^(s − 127 + 80).
UNDO_NVFP4 = tl.constexpr(2.0**7)
UNDO_MXFP8 = tl.constexpr(2.0**40)
_TWO_120 = tl.constexpr(2.0**120)
_TWO_119 = tl.constexpr(2.0**119)
_MXFP8_EXPONENT = tl.constexpr(80)


def _pick(byte: int) -> int:
    """Selector of `prmt`: byte `byte` of two words, each with its sign spread over the byte above it."""
    return byte | (8 | byte) << 4 | (4 + byte) << 8 | (8 | (4 + byte)) << 12


def nvfp4_ptx() -> str:
    """$0…$7 = bf16 pairs of value j of the words $8 and $9, times the factor pair $10. Even values are low nibbles."""
    lines = ["{ .reg .b32 p, a, b;", "shl.b32 a, $8, 4; shl.b32 b, $9, 4;"]
    for value in range(8):
        first, second = ("$8", "$9") if value % 2 else ("a", "b")
        lines.append(f"prmt.b32 p, {first}, {second}, {_pick(value // 2):#06x};")
        lines.append(f"shl.b32 p, p, 2; and.b32 p, p, 0x81C081C0; mul.rn.bf16x2 ${value}, p, $10;")
    return "\n".join([*lines, "}"])


def mxfp8_ptx() -> str:
    """$0…$7 = bf16 pairs of byte j of the 64-bit words $8 and $9, times the factor pair $10."""
    lines = ["{ .reg .b32 p, a0, a1, b0, b1;", "mov.b64 {a0, a1}, $8; mov.b64 {b0, b1}, $9;"]
    for value in range(8):
        half = value // 4
        lines.append(f"prmt.b32 p, a{half}, b{half}, {_pick(value % 4):#06x};")
        lines.append(f"shl.b32 p, p, 4; and.b32 p, p, 0x87F087F0; mul.rn.bf16x2 ${value}, p, $10;")
    return "\n".join([*lines, "}"])


_NVFP4_PTX = tl.constexpr(nvfp4_ptx())
_MXFP8_PTX = tl.constexpr(mxfp8_ptx())
_NVFP4_REGISTERS = tl.constexpr("=r,=r,=r,=r,=r,=r,=r,=r,r,r,r")
_MXFP8_REGISTERS = tl.constexpr("=r,=r,=r,=r,=r,=r,=r,=r,l,l,r")
_EIGHT_BF16 = tl.constexpr((tl.bfloat16,) * 8)


@triton.jit
def phased(k):
    """Where column k stands in phased order."""
    return k // 128 * 128 + k % 8 * 16 + k % 128 // 8


@triton.jit
def _column(position):
    """Inverse of `phased`."""
    return position // 128 * 128 + position % 16 * 8 + position % 128 // 16


@triton.jit
def _value(words, j: tl.constexpr, FORMAT: tl.constexpr):
    """Value j of each word in fp32, as its moved bits give it (see above); for Triton's interpreter."""
    if FORMAT == "nvfp4":
        code = (words >> (4 * j)).to(tl.int32) & 15
        bits = ((code & 8) << 28) | ((code & 7) << 22)
    else:
        code = (words >> (8 * j)).to(tl.int32) & 255
        bits = ((code & 128) << 24) | ((code & 127) << 20)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _unpack(words, scales, FORMAT: tl.constexpr, PTX: tl.constexpr):
    """words: [N, W]; scales: [N, W/2] (NVFP4) or [N, W/4] (MXFP8) bytes → [N, 8·W] bf16 in phased order.

    Without PTX fp32.
    """
    N: tl.constexpr = words.shape[0]
    W: tl.constexpr = words.shape[1]
    REPEAT: tl.constexpr = W // scales.shape[1]
    if PTX:
        if FORMAT == "nvfp4":
            # Two factors, for 2^239 is no bf16; the first makes subnormal scales normal.
            factor = (scales.to(tl.int16) << 4).to(tl.bfloat16, bitcast=True) * _TWO_120
            factor = (factor * _TWO_119).to(tl.bfloat16)
        else:
            exponent = tl.minimum(scales.to(tl.int16) + _MXFP8_EXPONENT, 255)
            factor = (exponent << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        if FORMAT == "nvfp4":
            factor = (scales.to(tl.int32) << 20).to(tl.float32, bitcast=True) * _TWO_120 * _TWO_119
        else:
            exponent = tl.minimum(scales.to(tl.int32) + _MXFP8_EXPONENT, 255)
            factor = (exponent << 23).to(tl.float32, bitcast=True)
    factor = tl.reshape(tl.broadcast_to(factor[:, :, None], (N, W // REPEAT, REPEAT)), (N, W))
    if PTX:
        if FORMAT == "nvfp4":
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                _NVFP4_PTX, _NVFP4_REGISTERS, [words, factor], dtype=_EIGHT_BF16, is_pure=True, pack=2
            )
        else:
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                _MXFP8_PTX, _MXFP8_REGISTERS, [words, factor], dtype=_EIGHT_BF16, is_pure=True, pack=2
            )
    else:
        v0 = _value(words, 0, FORMAT) * factor
        v1 = _value(words, 1, FORMAT) * factor
        v2 = _value(words, 2, FORMAT) * factor
        v3 = _value(words, 3, FORMAT) * factor
        v4 = _value(words, 4, FORMAT) * factor
        v5 = _value(words, 5, FORMAT) * factor
        v6 = _value(words, 6, FORMAT) * factor
        v7 = _value(words, 7, FORMAT) * factor
    low = tl.join(tl.join(v0, v1), tl.join(v2, v3))
    high = tl.join(tl.join(v4, v5), tl.join(v6, v7))
    # [N, blocks, i, j's bits from the lowest up] → [N, blocks, j, i]: only names of registers change.
    values = tl.reshape(tl.join(low, high), (N, W // _WORDS, _WORDS, 2, 2, 2))
    return tl.reshape(tl.permute(values, (0, 1, 5, 4, 3, 2)), (N, 8 * W))


@triton.jit
def multiply(
    codes_ptr,
    scales_ptr,
    rows,
    row_mask,
    x_ptr,
    x_rows,
    x_mask,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FORMAT: tl.constexpr,
    PHASED: tl.constexpr,
    STAGES: tl.constexpr,
    PTX: tl.constexpr,
):
    """Sums over K of weight rows times token rows.

    Args:
        codes_ptr: matrix [·, K]: bf16 (FORMAT "plain"), int32 words ("nvfp4") or int64 words ("mxfp8").
        scales_ptr: uint8 [·, K/16] or [·, K/32]; not read for "plain".
        rows, row_mask: [BLOCK_N] rows of the matrix.
        x_ptr: bf16 [·, K]; with PHASED, which "plain" has not, [·, K rounded up to 128] in phased order.
        x_rows, x_mask: [BLOCK_M] int64 rows of x.
        BLOCK_K: a multiple of 128.

    Returns:
        [BLOCK_N, BLOCK_M] fp32, to be multiplied by UNDO_* and the row scales: see `finish`.
    """
    UNEVEN: tl.constexpr = K % BLOCK_K != 0
    acc = tl.zeros((rows.shape[0], x_rows.shape[0]), tl.float32)
    columns = tl.arange(0, BLOCK_K)
    if FORMAT == "plain":
        w_ptrs = codes_ptr + rows[:, None] * K + columns[None, :]
        x_ptrs = x_ptr + x_rows[None, :] * K + columns[:, None]
        for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            inside = columns < K - k
            w_mask = row_mask[:, None]
            columns_mask = x_mask[None, :]
            if UNEVEN:
                w_mask = w_mask & inside[None, :]
                columns_mask = columns_mask & inside[:, None]
            w = tl.load(w_ptrs, mask=w_mask, other=0.0)
            x = tl.load(x_ptrs, mask=columns_mask, other=0.0)
            if not PTX:
                w = w.to(tl.float32)
                x = x.to(tl.float32)
            acc = tl.dot(w, x, acc, input_precision="ieee")
            w_ptrs += BLOCK_K
            x_ptrs += BLOCK_K
    else:
        GROUP: tl.constexpr = 16 if FORMAT == "nvfp4" else 32
        BLOCK_M: tl.constexpr = x_rows.shape[0]
        words = tl.arange(0, BLOCK_K // 8)
        groups = tl.arange(0, BLOCK_K // GROUP)
        w_ptrs = codes_ptr + rows[:, None] * (K // 8) + words[None, :]
        s_ptrs = scales_ptr + rows[:, None] * (K // GROUP) + groups[None, :]
        if PHASED:
            x_ptrs = x_ptr + x_rows[None, :] * ((K + 127) // 128 * 128) + columns[:, None]
        else:
            x_ptrs = x_ptr + x_rows[:, None] * K + columns[None, :]
        for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            w_mask = row_mask[:, None]
            s_mask = row_mask[:, None]
            columns_mask = x_mask[None, :] if PHASED else x_mask[:, None]
            if UNEVEN:
                w_mask = w_mask & (words * 8 < K - k)[None, :]
                s_mask = s_mask & (groups * GROUP < K - k)[None, :]
                if PHASED:
                    columns_mask = columns_mask & (_column(columns) < K - k)[:, None]
                else:
                    columns_mask = columns_mask & (columns < K - k)[None, :]
            w = tl.load(w_ptrs, mask=w_mask, other=0)
            s = tl.load(s_ptrs, mask=s_mask, other=0)
            x = tl.load(x_ptrs, mask=columns_mask, other=0.0)
            if not PTX:
                x = x.to(tl.float32)
            if not PHASED:
                x = tl.permute(tl.reshape(x, (BLOCK_M, BLOCK_K // 128, _WORDS, 8)), (0, 1, 3, 2))
                x = tl.trans(tl.reshape(x, (BLOCK_M, BLOCK_K)))
            acc = tl.dot(_unpack(w, s, FORMAT, PTX), x, acc, input_precision="ieee")
            w_ptrs += BLOCK_K // 8
            s_ptrs += BLOCK_K // GROUP
            x_ptrs += BLOCK_K
    return acc


@triton.jit
def finish(acc, row_scales_ptr, rows, row_mask, FORMAT: tl.constexpr):
    """Makes `multiply`'s sums those of the matrix: powers of two made up for, NVFP4's row scales ([·] fp32) applied."""
    if FORMAT == "nvfp4":
        acc *= (tl.load(row_scales_ptr + rows, mask=row_mask, other=0.0) * UNDO_NVFP4)[:, None]
    elif FORMAT == "mxfp8":
        acc *= UNDO_MXFP8
    return acc


@triton.jit
def phase_row(x_ptr, out_ptr, row, K: tl.constexpr, BLOCK: tl.constexpr):
    """Copies x[row] ([·, K] bf16) to out[row] ([·, K rounded up to 128]) in phased order."""
    PADDED: tl.constexpr = (K + 127) // 128 * 128
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        values = tl.load(x_ptr + row.to(tl.int64) * K + k, mask=k < K, other=0.0)
        tl.store(out_ptr + row.to(tl.int64) * PADDED + phased(k), values, mask=k < K)
