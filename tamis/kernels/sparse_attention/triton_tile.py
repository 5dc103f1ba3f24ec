"""Device code of sparse attention: a tile of 128 keys or values from its lane, and one block's share of the softmax.

What every kernel here keeps, so that a query has the same bits however it is served (alone, among others, by whichever
kernel): a pair of query and block is a *partial*, computed by itself. Scores are sums of the tensor core over the 128
columns in ascending steps of 16; weights are exp2(score − the pair's own largest score), rounded for the product with
V; their sum is one of whole numbers (multiples of 2^−23), so no order of adding shows; the output is rounded to bf16.
Partials are merged in fp32 in ascending order of the block's place in the sequence (`merge`). Everything that could be
fused differently by a compiler is spelled as a fused multiply-add.

Formats. Products run in bf16, where e2m1·scale and E4M3 values are exact, and under the e4m3 contract in fp16, where
queries, keys and values, all E4M3, are exact too and weights are finer. NVFP4 is unpacked by moving bits:

- exact: sign to bit 15, exponent and mantissa to bits 8–6 give e2m1·2^−126 in bf16; one product with scale·2^119 leaves
  e2m1·scale·2^−7, made up for after the sum (`UNDO_EXACT`). About 2.1 instructions a value.
- e4m3: of each scale the eight products with the magnitudes are rounded to E4M3 at once and lie in two registers; a
  byte permute picks four values by their codes, signs are OR-ed in. About 2.3 instructions a value.
"""

from __future__ import annotations

import triton
import triton.language as tl

_TWO_120 = tl.constexpr(2.0**120)
_TWO_119 = tl.constexpr(2.0**119)
UNDO_EXACT = tl.constexpr(2.0**7)
_ONE = tl.constexpr(0x3F800000)  # fp32 1.0
_UNIT = tl.constexpr(2.0**-23)
_MINUS_INFINITY = tl.constexpr(float("-inf"))


def exact_ptx() -> str:
    """$0…$15 = bf16 values of the 64-bit word $16 times the bf16 factor $17."""
    lines = ["{ .reg .b32 low, high, a, p, f;", "mov.b64 {low, high}, $16; mov.b32 f, {$17, $17};"]
    for word, name in enumerate(("low", "high")):
        lines.append(f"shl.b32 a, {name}, 4;")
        for byte in range(4):
            # An even value's nibble tops its byte in `a`, an odd one's in the word; each with its sign spread above.
            pick = byte | (8 | byte) << 4 | (4 + byte) << 8 | (8 | (4 + byte)) << 12
            at = 8 * word + 2 * byte
            lines.append(f"prmt.b32 p, a, {name}, {pick:#06x}; shl.b32 p, p, 2; and.b32 p, p, 0x81C081C0;")
            lines.append(f"mul.rn.bf16x2 p, p, f; mov.b32 {{${at}, ${at + 1}}}, p;")
    return "\n".join([*lines, "}"])


def e4m3_ptx() -> str:
    """$0…$15 = fp16 values of the 64-bit word $16 times the E4M3 scale $17 (32 bits), rounded to E4M3."""
    lines = ["{ .reg .b32 low, high, a, f, m, s, t, x; .reg .b32 few, many; .reg .b16 h, k;"]
    lines.append("prmt.b32 t, $17, 0, 0; mov.b32 {h, k}, t; cvt.rn.f16x2.e4m3x2 f, h;")
    # Magnitudes as pairs of fp16: (0, 0.5) (1, 1.5) | (2, 3) (4, 6).
    for name, pairs in (("few", ("0x38000000", "0x3E003C00")), ("many", ("0x42004000", "0x46004400"))):
        for half, pair in zip(("h", "k"), pairs, strict=True):
            lines.append(f"mov.b32 t, {pair}; mul.rn.f16x2 t, t, f; cvt.rn.satfinite.e4m3x2.f16x2 {half}, t;")
        lines.append(f"mov.b32 {name}, {{h, k}};")
    lines.append("mov.b64 {low, high}, $16;")
    for word, name in enumerate(("low", "high")):
        lines.append(f"shl.b32 a, {name}, 4; and.b32 m, {name}, 0x77777777;")
        # Four values at a time: signs of nibbles 0 1 2 3 top the bytes a0 w0 a1 w1, those of 4 5 6 7 a2 w2 a3 w3.
        for quad, signs in enumerate((0xD9C8, 0xFBEA)):
            if quad:
                lines.append("shr.u32 m, m, 16;")
            lines.append(f"prmt.b32 x, few, many, m; prmt.b32 s, a, {name}, {signs:#06x};")
            lines.append("and.b32 s, s, 0x80808080; or.b32 x, x, s; mov.b32 {h, k}, x;")
            for second, register in enumerate(("h", "k")):
                at = 8 * word + 4 * quad + 2 * second
                lines.append(f"cvt.rn.f16x2.e4m3x2 t, {register}; mov.b32 {{${at}, ${at + 1}}}, t;")
    return "\n".join([*lines, "}"])


def fp8_ptx() -> str:
    """$0…$7 = bf16 values of the eight E4M3 bytes of the 64-bit word $8."""
    lines = ["{ .reg .b32 low, high, p, f;", "mov.b64 {low, high}, $8; mov.b32 f, 0x7B807B80;"]  # 2^120
    for word, name in enumerate(("low", "high")):
        for half in range(2):
            first = 2 * half
            pick = first | (8 | first) << 4 | (first + 1) << 8 | (8 | (first + 1)) << 12
            at = 4 * word + first
            lines.append(f"prmt.b32 p, {name}, 0, {pick:#06x}; shl.b32 p, p, 4; and.b32 p, p, 0x87F087F0;")
            lines.append(f"mul.rn.bf16x2 p, p, f; mov.b32 {{${at}, ${at + 1}}}, p;")
    return "\n".join([*lines, "}"])


_EXACT_PTX = tl.constexpr(exact_ptx())
_EXACT_REGISTERS = tl.constexpr(",".join(["=h"] * 16 + ["l", "h"]))
_E4M3_PTX = tl.constexpr(e4m3_ptx())
_E4M3_REGISTERS = tl.constexpr(",".join(["=h"] * 16 + ["l", "r"]))
_FP8_PTX = tl.constexpr(fp8_ptx())
_FP8_REGISTERS = tl.constexpr(",".join(["=h"] * 8 + ["l"]))
_SIXTEEN_BF16 = tl.constexpr((tl.bfloat16,) * 16)
_SIXTEEN_FP16 = tl.constexpr((tl.float16,) * 16)
_EIGHT_BF16 = tl.constexpr((tl.bfloat16,) * 8)
# Codes of a format that one element of a loaded tile holds.
WORD_VALUES = {"nvfp4": 16, "fp8": 8, "bfloat16": 1}


@triton.jit
def round_to_e4m3(x):
    """x: fp32 → fp32, the nearest E4M3 (half to even), saturated to ±448."""
    magnitude = tl.minimum(tl.abs(x), 448.0)
    bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    small = (magnitude + 16384.0) - 16384.0  # multiples of 2^−9
    rounded = tl.where(magnitude < 0.015625, small, normal)
    return tl.where(x == x, tl.where(x < 0, -rounded, rounded), x)


@triton.jit
def load_tile(
    codes_ptr,
    scales_ptr,
    block,
    head,
    visible,
    codes_block: tl.constexpr,
    codes_head: tl.constexpr,
    scales_block: tl.constexpr,
    scales_head: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Codes and scales of a block's first `visible` vectors of a head, as they lie in memory; zeros for the rest.

    Args:
        codes_ptr: int64 (nvfp4, fp8) or bf16; scales_ptr: uint8, read for nvfp4 only.
        block: int64 pool block id.
        codes_block, codes_head, scales_block, scales_head: strides in elements; block strides are multiples of 16
            bytes.
    """
    WIDTH: tl.constexpr = 8 if FORMAT == "nvfp4" else (16 if FORMAT == "fp8" else 128)
    EVEN: tl.constexpr = 8 if FORMAT == "bfloat16" else 2
    key = tl.arange(0, 128)[:, None]
    inside = key < visible
    start = tl.multiple_of(block * codes_block + head * codes_head, EVEN)
    codes = tl.load(codes_ptr + start + key * WIDTH + tl.arange(0, WIDTH)[None, :], mask=inside, other=0)
    scales = codes
    if FORMAT == "nvfp4":
        start = tl.multiple_of(block * scales_block + head * scales_head, 16)
        # Two scales a thread and row, so that two words stand beside them: with a whole row a thread, Triton lays the
        # unpacked tile into shared memory column by column.
        at = tl.max_contiguous(key * 8 + tl.arange(0, 8)[None, :], [1, 2])
        scales = tl.load(scales_ptr + start + at, mask=inside, other=0)
    return codes, scales


@triton.jit
def _nibble(words, scales, i: tl.constexpr, E4M3: tl.constexpr):
    """Value i of each word in fp32; for Triton's interpreter."""
    code = (words >> (4 * i)).to(tl.int32) & 15
    exponent, mantissa = (code >> 1) & 3, code & 1
    # e2m1 in halves: 0 1 2 3 4 6 8 12.
    halves = tl.where(exponent == 0, mantissa, (2 + mantissa) << tl.maximum(exponent - 1, 0))
    scale = ((scales.to(tl.int32) & 127) << 20).to(tl.float32, bitcast=True) * _TWO_120
    value = halves.to(tl.float32) * 0.5 * scale
    value = tl.where(code >= 8, -value, value)
    return round_to_e4m3(value) if E4M3 else value * (1.0 / UNDO_EXACT)


@triton.jit
def _byte(words, i: tl.constexpr):
    """E4M3 value i of each word in fp32; for Triton's interpreter."""
    code = (words >> (8 * i)).to(tl.int32) & 255
    bits = ((code & 128) << 24) | ((code & 127) << 20)
    return bits.to(tl.float32, bitcast=True) * _TWO_120


@triton.jit
def _interleave(v0, v1, v2, v3, v4, v5, v6, v7):
    """Eight [N, W] → [N, W, 2, 2, 2], value i at i's bits."""
    even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
    odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
    return tl.join(even, odd)


@triton.jit
def unpack(codes, scales, FORMAT: tl.constexpr, E4M3: tl.constexpr, PTX: tl.constexpr):
    """What `load_tile` loaded → [128, 128] bf16, under E4M3 fp16; without PTX fp32. NVFP4 read exactly: · 2^−7."""
    if FORMAT == "bfloat16":
        if PTX:
            return codes
        else:
            return codes.to(tl.float32)
    elif FORMAT == "fp8":
        if PTX:
            a0, a1, a2, a3, a4, a5, a6, a7 = tl.inline_asm_elementwise(
                _FP8_PTX, _FP8_REGISTERS, [codes], dtype=_EIGHT_BF16, is_pure=True, pack=1
            )
        else:
            a0, a1, a2, a3 = _byte(codes, 0), _byte(codes, 1), _byte(codes, 2), _byte(codes, 3)
            a4, a5, a6, a7 = _byte(codes, 4), _byte(codes, 5), _byte(codes, 6), _byte(codes, 7)
        return tl.reshape(_interleave(a0, a1, a2, a3, a4, a5, a6, a7), (128, 128))
    else:
        if PTX:
            if E4M3:
                a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7 = tl.inline_asm_elementwise(
                    _E4M3_PTX, _E4M3_REGISTERS, [codes, scales.to(tl.int32)], dtype=_SIXTEEN_FP16, is_pure=True, pack=1
                )
            else:
                # Two factors, for 2^239 is no bf16; the first makes subnormal scales normal.
                factor = (scales.to(tl.int16) << 4).to(tl.bfloat16, bitcast=True) * _TWO_120
                factor = (factor * _TWO_119).to(tl.bfloat16)
                a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7 = tl.inline_asm_elementwise(
                    _EXACT_PTX, _EXACT_REGISTERS, [codes, factor], dtype=_SIXTEEN_BF16, is_pure=True, pack=1
                )
        else:
            a0, a1 = _nibble(codes, scales, 0, E4M3), _nibble(codes, scales, 1, E4M3)
            a2, a3 = _nibble(codes, scales, 2, E4M3), _nibble(codes, scales, 3, E4M3)
            a4, a5 = _nibble(codes, scales, 4, E4M3), _nibble(codes, scales, 5, E4M3)
            a6, a7 = _nibble(codes, scales, 6, E4M3), _nibble(codes, scales, 7, E4M3)
            b0, b1 = _nibble(codes, scales, 8, E4M3), _nibble(codes, scales, 9, E4M3)
            b2, b3 = _nibble(codes, scales, 10, E4M3), _nibble(codes, scales, 11, E4M3)
            b4, b5 = _nibble(codes, scales, 12, E4M3), _nibble(codes, scales, 13, E4M3)
            b6, b7 = _nibble(codes, scales, 14, E4M3), _nibble(codes, scales, 15, E4M3)
        first = _interleave(a0, a1, a2, a3, a4, a5, a6, a7)
        second = _interleave(b0, b1, b2, b3, b4, b5, b6, b7)
        # The last joined bit varies fastest: [N, 8, 4s, 2s, 1s, 8s] → bit 3 to the front of them.
        both = tl.permute(tl.join(first, second), (0, 1, 5, 2, 3, 4))
        return tl.reshape(both, (128, 128))


@triton.jit
def load_queries(q_ptr, rows, live, HQ: tl.constexpr, SWAP: tl.constexpr, E4M3: tl.constexpr, PTX: tl.constexpr):
    """Query rows in the products' type: [R, 128], with SWAP [128, R]. Zeros where not live.

    Args:
        q_ptr: bf16 or fp32 [·, 128], or fp16 that `round_kernel` made; rows: [R] int64; live: [R].
    """
    d = tl.arange(0, 128)
    if SWAP:
        q = tl.load(q_ptr + rows[None, :] * 128 + d[:, None], mask=live[None, :], other=0.0)
    else:
        q = tl.load(q_ptr + rows[:, None] * 128 + d[None, :], mask=live[:, None], other=0.0)
    if E4M3 and q_ptr.dtype.element_ty != tl.float16:
        q = round_to_e4m3(q.to(tl.float32))
    if PTX:
        return q.to(tl.float16 if E4M3 else tl.bfloat16)
    else:
        return q.to(tl.float32)


@triton.jit(do_not_specialize=["values"])
def round_kernel(q_ptr, out_ptr, values, BLOCK: tl.constexpr):
    """out fp16 = q rounded to E4M3, for kernels that load a query often."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    q = tl.load(q_ptr + at, mask=at < values, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, round_to_e4m3(q).to(tl.float16), mask=at < values)


@triton.jit
def over_rows(x, SWAP: tl.constexpr):
    """[R] as it stands beside a tile of rows: [R, 1], with SWAP [1, R]."""
    return x[None, :] if SWAP else x[:, None]


@triton.jit
def attend(q, k, v, limit, factor, SWAP: tl.constexpr):
    """Partials of R rows over one block.

    Args:
        q: see `load_queries`. k, v: [128, 128] of `unpack`.
        limit: [R] int32: keys that the row sees; 0 leaves its partial empty.
        factor: positive; scale · log2(e), times what undoes k's unpacking.

    Returns:
        (output fp32 [R, 128], with SWAP [128, R], unnormalised, not yet rounded to bf16; peak [R] in powers of 2, −inf
        where empty; mass [R]).
    """
    key = tl.arange(0, 128)
    if SWAP:
        scores = tl.dot(k, q, input_precision="ieee")
        scores = tl.where(key[:, None] < limit[None, :], scores, _MINUS_INFINITY)
        peak = tl.max(scores, 0) * factor
    else:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(key[None, :] < limit[:, None], scores, _MINUS_INFINITY)
        peak = tl.max(scores, 1) * factor
    shift = tl.where(peak == _MINUS_INFINITY, 0.0, -peak)
    weights = tl.exp2(tl.fma(scores, tl.full(scores.shape, factor, tl.float32), over_rows(shift, SWAP)))
    # 1 + w in [1, 2] steps by 2^−23: the bits above those of 1.0 are the weight in those steps, a whole number.
    steps = (weights + 1.0).to(tl.int32, bitcast=True) - _ONE
    if SWAP:
        mass = tl.sum(steps, 0).to(tl.float32) * _UNIT
        out = tl.dot(tl.trans(v), weights.to(v.dtype), input_precision="ieee")
    else:
        mass = tl.sum(steps, 1).to(tl.float32) * _UNIT
        out = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return out, peak, mass


@triton.jit
def round_to_bf16(x, PTX: tl.constexpr):
    """fp32 → fp32, as storing it in bf16 and loading it again would. A pair is one conversion; single ones are slow."""
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 p; cvt.rn.bf16x2.f32 p, $3, $2; shl.b32 $0, p, 16; and.b32 $1, p, 0xFFFF0000; }",
            "=r,=r,r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def merge(out, peak, mass, part_out, part_peak, part_mass, SWAP: tl.constexpr):
    """Running merge with one more partial, its output rounded to bf16. An empty one changes nothing."""
    new_peak = tl.maximum(peak, part_peak)
    shift = tl.where(new_peak == _MINUS_INFINITY, 0.0, -new_peak)
    keep = tl.exp2(peak + shift)
    take = tl.exp2(part_peak + shift)
    kept = out * over_rows(keep, SWAP)
    take_all = tl.broadcast_to(over_rows(take, SWAP), out.shape)
    return tl.fma(part_out, take_all, kept), new_peak, tl.fma(part_mass, take, mass * keep)


@triton.jit
def normalise(out, mass, undo: tl.constexpr, SWAP: tl.constexpr):
    """Merged output over merged mass; 0 for a row without any block."""
    return out * over_rows(undo / tl.where(mass > 0.0, mass, 1.0), SWAP)
