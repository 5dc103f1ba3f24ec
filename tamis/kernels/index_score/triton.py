"""Block scores in Triton: bf16 (or fp16) products with fp32 sums, keys unpacked in the registers that feed them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tamis.kernels.lane import Lane
from tamis.kernels.packed_tile import nvfp4_ptx
from tamis.kernels.triton_device import interpreted

_DIM = tl.constexpr(128)
_BLOCK = tl.constexpr(128)
_WORDS = tl.constexpr(16)  # words of 8 nvfp4 values in a key

# Bits of a code moved into place give e2m1·2^−126; the factor is scale·2^119, so sums are 2^7 too small.
_UNDO = tl.constexpr(2.0**7)
_TWO_119 = tl.constexpr(2.0**119)
_TWO_126 = tl.constexpr(2.0**126)

# $0 = bf16 pair (scale·2^119, twice) of the E4M3 byte $1; NaN stays NaN.
_FACTOR_PTX = tl.constexpr(
    """{ .reg .b16 byte, low, high; .reg .b32 pair; .reg .f32 scale;
    cvt.u16.u32 byte, $1;
    cvt.rn.f16x2.e4m3x2 pair, byte;
    mov.b32 {low, high}, pair;
    cvt.f32.f16 scale, low;
    mul.f32 scale, scale, 0f7B000000;
    cvt.rn.bf16x2.f32 $0, scale, scale; }"""
)
# $0, $1 = the eight magnitudes of E2M1 times the E4M3 byte $2, rounded to E4M3, a byte each.
_MAGNITUDES_PTX = tl.constexpr(
    """{ .reg .b16 byte, m0, m1, m2, m3; .reg .b32 scale, p, c;
    prmt.b32 p, $2, 0, 0x4400;
    cvt.u16.u32 byte, p;
    cvt.rn.f16x2.e4m3x2 scale, byte;
    mov.b32 c, 0x38000000; mul.rn.f16x2 p, scale, c; cvt.rn.satfinite.e4m3x2.f16x2 m0, p;
    mov.b32 c, 0x3E003C00; mul.rn.f16x2 p, scale, c; cvt.rn.satfinite.e4m3x2.f16x2 m1, p;
    mov.b32 c, 0x42004000; mul.rn.f16x2 p, scale, c; cvt.rn.satfinite.e4m3x2.f16x2 m2, p;
    mov.b32 c, 0x46004400; mul.rn.f16x2 p, scale, c; cvt.rn.satfinite.e4m3x2.f16x2 m3, p;
    mov.b32 $0, {m0, m1}; mov.b32 $1, {m2, m3}; }"""
)


def e4m3_ptx() -> str:
    """$0…$7 = fp16 pairs of value j of the words $8 and $9, looked up in the magnitudes ($10, $12) of their scale."""
    lines = ["{ .reg .b32 mixed, pick, shifted, sign, bytes; .reg .b16 low, high;"]
    for parity in (0, 1):
        # Values parity, parity + 2, … of both words in turn, a nibble each.
        if parity == 0:
            lines.append("shl.b32 shifted, $9, 4; lop3.b32 mixed, $8, shifted, 0x0F0F0F0F, 0xE4;")
        else:
            lines.append("shr.u32 shifted, $8, 4; lop3.b32 mixed, shifted, $9, 0x0F0F0F0F, 0xE4;")
        lines.append("and.b32 pick, mixed, 0x77777777; shl.b32 shifted, mixed, 4;")
        for half, selector in ((0, 0x5140), (1, 0x7362)):
            lines.append(f"prmt.b32 sign, shifted, mixed, {selector:#x};")
            lines.append("prmt.b32 bytes, $10, $12, pick;")
            lines.append("lop3.b32 bytes, bytes, sign, 0x80808080, 0x78; mov.b32 {low, high}, bytes;")
            for byte_pair, name in ((0, "low"), (1, "high")):
                lines.append(f"cvt.rn.f16x2.e4m3x2 ${4 * half + 2 * byte_pair + parity}, {name};")
            if half == 0:
                lines.append("shr.u32 pick, pick, 16;")
    return "\n".join([*lines, "}"])


def fp8_ptx() -> str:
    """$0…$7 = bf16 pairs of byte j of the 64-bit words $8 and $9, E4M3; NaN stays NaN."""
    lines = ["{ .reg .b32 a0, a1, b0, b1, bytes; .reg .b16 pair0, pair1, low, high; .reg .f32 first, second;"]
    lines.append("mov.b64 {a0, a1}, $8; mov.b64 {b0, b1}, $9;")
    for value in range(0, 8, 2):
        half = value // 4
        lines.append(f"prmt.b32 bytes, a{half}, b{half}, {0x7362 if value % 4 else 0x5140:#x};")
        lines.append("mov.b32 {pair0, pair1}, bytes;")
        for i in (0, 1):
            lines.append(f"cvt.rn.f16x2.e4m3x2 bytes, pair{i}; mov.b32 {{low, high}}, bytes;")
            lines.append("cvt.f32.f16 first, low; cvt.f32.f16 second, high;")
            lines.append(f"cvt.rn.bf16x2.f32 ${value + i}, second, first;")
    return "\n".join([*lines, "}"])


_EXACT_PTX = tl.constexpr(nvfp4_ptx())
_FP8_PTX = tl.constexpr(fp8_ptx())
_E4M3_PTX = tl.constexpr(e4m3_ptx())
_EIGHT_BF16 = tl.constexpr((tl.bfloat16,) * 8)
_EIGHT_FP16 = tl.constexpr((tl.float16,) * 8)
_TWO_INT32 = tl.constexpr((tl.int32,) * 2)


@triton.jit
def _round_to_e4m3(x):
    """fp32 → fp32 values of E4M3: half to even, saturated to ±448. NaN stays NaN."""
    x = tl.minimum(tl.maximum(x, -448.0, tl.PropagateNan.ALL), 448.0, tl.PropagateNan.ALL)
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    # The sum's last bit is worth an E4M3 step: 2^−3 of the number's power of two, 2^−9 below 2^−6.
    push = tl.maximum(power, 2.0**-6) * (1.5 * 2.0**20)
    return (x + push) - push


@triton.jit
def _e4m3_value(byte):
    """E4M3 bytes (int32) → fp32."""
    bits = ((byte & 128) << 24) | ((byte & 127) << 20)
    value = bits.to(tl.float32, bitcast=True) * 2.0**60 * 2.0**60
    return tl.where((byte & 127) == 127, float("nan"), value)


@triton.jit
def _nvfp4_value(words, scale, j: tl.constexpr, ROUND: tl.constexpr):
    """Value j of each word times its scale in fp32; for Triton's interpreter."""
    code = (words >> (4 * j)) & 15
    bits = ((code & 8) << 28) | ((code & 7) << 22)
    value = bits.to(tl.float32, bitcast=True) * _TWO_126 * scale
    return _round_to_e4m3(value) if ROUND else value


@triton.jit
def _unpack_nvfp4(words, scales, ROUND: tl.constexpr, PTX: tl.constexpr):
    """words: [128, 16] int32; scales: [128, 8] bytes → [128, 128] bf16, with ROUND fp16 (without PTX fp32).

    Columns stand in phased order (see `packed_tile`). Without ROUND and with PTX values are 2^7 too small.
    """
    scales = scales.to(tl.int32)
    if PTX:
        if ROUND:
            low, high = tl.inline_asm_elementwise(
                _MAGNITUDES_PTX, "=r,=r,r", [scales], dtype=_TWO_INT32, is_pure=True, pack=1
            )
            low = tl.reshape(tl.broadcast_to(low[:, :, None], (_BLOCK, 8, 2)), (_BLOCK, _WORDS))
            high = tl.reshape(tl.broadcast_to(high[:, :, None], (_BLOCK, 8, 2)), (_BLOCK, _WORDS))
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                _E4M3_PTX, "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r", [words, low, high], dtype=_EIGHT_FP16,
                is_pure=True, pack=2,
            )  # fmt: skip
        else:
            factor = tl.inline_asm_elementwise(_FACTOR_PTX, "=r,r", [scales], dtype=tl.int32, is_pure=True, pack=1)
            factor = tl.reshape(tl.broadcast_to(factor[:, :, None], (_BLOCK, 8, 2)), (_BLOCK, _WORDS))
            v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
                _EXACT_PTX, "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r", [words, factor], dtype=_EIGHT_BF16,
                is_pure=True, pack=2,
            )  # fmt: skip
    else:
        scale = tl.reshape(tl.broadcast_to(_e4m3_value(scales)[:, :, None], (_BLOCK, 8, 2)), (_BLOCK, _WORDS))
        v0 = _nvfp4_value(words, scale, 0, ROUND)
        v1 = _nvfp4_value(words, scale, 1, ROUND)
        v2 = _nvfp4_value(words, scale, 2, ROUND)
        v3 = _nvfp4_value(words, scale, 3, ROUND)
        v4 = _nvfp4_value(words, scale, 4, ROUND)
        v5 = _nvfp4_value(words, scale, 5, ROUND)
        v6 = _nvfp4_value(words, scale, 6, ROUND)
        v7 = _nvfp4_value(words, scale, 7, ROUND)
    return _phased_columns(v0, v1, v2, v3, v4, v5, v6, v7)


@triton.jit
def _phased_columns(v0, v1, v2, v3, v4, v5, v6, v7):
    """Value j of each word, [128, 16], j = 0…7 → [128, 128] in phased order: only names of registers change."""
    low = tl.join(tl.join(v0, v1), tl.join(v2, v3))
    high = tl.join(tl.join(v4, v5), tl.join(v6, v7))
    # [128, i, j's bits from the lowest up] → [128, j, i].
    values = tl.reshape(tl.join(low, high), (_BLOCK, _WORDS, 2, 2, 2))
    return tl.reshape(tl.permute(values, (0, 4, 3, 2, 1)), (_BLOCK, _DIM))


@triton.jit
def _unpack_fp8(words, PTX: tl.constexpr):
    """words: [128, 16] int64 → [128, 128] bf16 (without PTX fp32) in phased order."""
    if PTX:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            _FP8_PTX, "=r,=r,=r,=r,=r,=r,=r,=r,l,l", [words], dtype=_EIGHT_BF16, is_pure=True, pack=2
        )
    else:
        v0 = _e4m3_value((words & 255).to(tl.int32))
        v1 = _e4m3_value(((words >> 8) & 255).to(tl.int32))
        v2 = _e4m3_value(((words >> 16) & 255).to(tl.int32))
        v3 = _e4m3_value(((words >> 24) & 255).to(tl.int32))
        v4 = _e4m3_value(((words >> 32) & 255).to(tl.int32))
        v5 = _e4m3_value(((words >> 40) & 255).to(tl.int32))
        v6 = _e4m3_value(((words >> 48) & 255).to(tl.int32))
        v7 = _e4m3_value(((words >> 56) & 255).to(tl.int32))
    return _phased_columns(v0, v1, v2, v3, v4, v5, v6, v7)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, tl.PropagateNan.ALL)


@triton.jit
def _greatest(x, axis: tl.constexpr, PTX: tl.constexpr):
    """Maximum, NaN if there is one; Triton's own, which the interpreter computes faster, forgets NaN on a GPU."""
    return tl.reduce(x, axis, _larger) if PTX else tl.max(x, axis)


@triton.jit
def _queries(q_ptr, rows, valid, FORMAT: tl.constexpr, KEYS_FIRST: tl.constexpr, PTX: tl.constexpr):
    """Rows of q ([·, 128] bf16), as the keys of a format want them: [rows, 128] or, with KEYS_FIRST, [128, rows]."""
    ROWS: tl.constexpr = rows.shape[0]
    q = tl.load(q_ptr + rows.to(tl.int64)[:, None] * _DIM + tl.arange(0, 128)[None, :], mask=valid[:, None], other=0.0)
    if FORMAT == "nvfp4 e4m3":
        q = _round_to_e4m3(q.to(tl.float32)).to(tl.float16)
    if FORMAT != "bfloat16":
        q = tl.reshape(tl.permute(tl.reshape(q, (ROWS, _WORDS, 8)), (0, 2, 1)), (ROWS, _DIM))
    if not PTX:
        q = q.to(tl.float32)
    if KEYS_FIRST:
        q = tl.trans(q)
    return q


@triton.jit
def _block_scores(
    q, codes_ptr, scales_ptr, block, block_stride, start, pos,
    MASKED: tl.constexpr, FORMAT: tl.constexpr, KEYS_FIRST: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """[rows] fp32: each row's greatest dot over a block's keys, whose first stands at position `start`.

    With MASKED over those up to the row's position only.
    """
    key = tl.arange(0, 128)
    offset = block.to(tl.int64) * block_stride
    if FORMAT == "nvfp4" or FORMAT == "nvfp4 e4m3":
        # Strides count 16 bytes, so that the compiler sees the alignment.
        words = tl.load(codes_ptr + offset * 4 + (key[:, None] * _WORDS + tl.arange(0, 16)[None, :]))
        scales = tl.load(scales_ptr + offset * 16 + (key[:, None] * 8 + tl.arange(0, 8)[None, :]))
        keys = _unpack_nvfp4(words, scales, FORMAT == "nvfp4 e4m3", PTX)
    elif FORMAT == "fp8":
        keys = _unpack_fp8(tl.load(codes_ptr + offset * 2 + (key[:, None] * _WORDS + tl.arange(0, 16)[None, :])), PTX)
    else:
        keys = tl.load(codes_ptr + offset * 8 + (key[:, None] * _DIM + tl.arange(0, 128)[None, :]))
        if not PTX:
            keys = keys.to(tl.float32)
    if KEYS_FIRST:
        dots = tl.dot(keys, q, input_precision="ieee")
        if MASKED:
            dots = tl.where((start + key)[:, None] <= pos[None, :], dots, -float("inf"))
        best = _greatest(dots, 0, PTX)
    else:
        dots = tl.dot(q, tl.trans(keys), input_precision="ieee")
        if MASKED:
            dots = tl.where((start + key)[None, :] <= pos[:, None], dots, -float("inf"))
        best = _greatest(dots, 1, PTX)
    if FORMAT == "nvfp4" and PTX:
        best *= _UNDO
    return best


@triton.jit
def _chunk_scores(
    q_ptr, codes_ptr, scales_ptr, table_ptr, out_ptr, rows, valid, pos, first, block_stride, out_stride,
    CHUNK: tl.constexpr, FORMAT: tl.constexpr, KEYS_FIRST: tl.constexpr, COLLECT: tl.constexpr,
    STAGES: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Scores of `rows` for the blocks [first, first + CHUNK) that some row sees.

    With COLLECT they are written at once, else block by block.
    """
    visible = (tl.max(pos, 0) + 128) // 128  # none for rows at −1
    if first < visible:
        # Blocks that every row sees whole need no mask.
        whole = (tl.min(tl.where(valid, pos, 0x7FFFFFFE), 0) + 1) // 128
        stop = tl.minimum(first + CHUNK, visible)
        middle = tl.maximum(tl.minimum(stop, whole), first)
        q = _queries(q_ptr, rows, valid, FORMAT, KEYS_FIRST, PTX)
        place = tl.arange(0, CHUNK)
        out_ptrs = out_ptr + rows.to(tl.int64) * out_stride
        best = tl.zeros((rows.shape[0], CHUNK if COLLECT else 1), tl.float32)
        for b in tl.range(first, middle, num_stages=STAGES):
            score = _block_scores(
                q, codes_ptr, scales_ptr, tl.load(table_ptr + b), block_stride, b * 128, pos,
                False, FORMAT, KEYS_FIRST, PTX,
            )  # fmt: skip
            if COLLECT:
                best = tl.where((place == b - first)[None, :], score[:, None], best)
            else:
                tl.store(out_ptrs + b, score, mask=valid)
        for b in tl.range(middle, stop, num_stages=1):
            score = _block_scores(
                q, codes_ptr, scales_ptr, tl.load(table_ptr + b), block_stride, b * 128, pos,
                True, FORMAT, KEYS_FIRST, PTX,
            )  # fmt: skip
            if COLLECT:
                best = tl.where((place == b - first)[None, :], score[:, None], best)
            else:
                tl.store(out_ptrs + b, score, mask=valid)
        if COLLECT:
            inside = valid[:, None] & (first + place < stop)[None, :]
            tl.store(out_ptrs[:, None] + (first + place)[None, :], best, mask=inside)


@triton.jit(do_not_specialize=["first_token"])
def decode_kernel(
    q_ptr, codes_ptr, scales_ptr, tables_ptr, starts_ptr, positions_ptr, out_ptr,
    first_token, table_stride, block_stride, out_stride,
    HEADS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FORMAT: tl.constexpr, KEYS_FIRST: tl.constexpr,
    COLLECT: tl.constexpr, STAGES: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One chunk of one request's blocks, for all its tokens and heads. Grid (chunks, requests)."""
    request = tl.program_id(1)
    start = (tl.load(starts_ptr + request) - first_token).to(tl.int32)
    count = (tl.load(starts_ptr + request + 1) - first_token).to(tl.int32) - start
    row = tl.arange(0, ROWS)
    valid = row < count * HEADS
    pos = tl.load(positions_ptr + start + row // HEADS, mask=valid, other=-1).to(tl.int32)
    _chunk_scores(
        q_ptr, codes_ptr, scales_ptr, tables_ptr + request.to(tl.int64) * table_stride, out_ptr,
        start * HEADS + row, valid, pos, tl.program_id(0) * CHUNK, block_stride, out_stride,
        CHUNK, FORMAT, KEYS_FIRST, COLLECT, STAGES, PTX,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def prefill_kernel(
    q_ptr, codes_ptr, scales_ptr, table_ptr, positions_ptr, out_ptr, num_rows, block_stride, out_stride,
    HEADS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, FORMAT: tl.constexpr, KEYS_FIRST: tl.constexpr,
    COLLECT: tl.constexpr, STAGES: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One chunk of a request's blocks for ROWS rows (token · HEADS + head). Grid (tiles, chunks)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = rows < num_rows
    pos = tl.load(positions_ptr + rows // HEADS, mask=valid, other=-1).to(tl.int32)
    _chunk_scores(
        q_ptr, codes_ptr, scales_ptr, table_ptr, out_ptr, rows, valid, pos, tl.program_id(1) * CHUNK,
        block_stride, out_stride, CHUNK, FORMAT, KEYS_FIRST, COLLECT, STAGES, PTX,
    )  # fmt: skip


@dataclass(frozen=True)
class ScoreTiles:
    """How one launch is cut: `rows` (token, head) pairs against `chunk` blocks a program.

    A block's id is loaded before its keys, which takes two of `num_stages` for each block in flight: 4 is one, 6 two.
    `keys_first` makes keys the rows of the tensor core's instruction; `collect` writes a chunk's scores at once.
    """

    rows: int
    chunk: int
    keys_first: bool
    collect: bool
    num_warps: int
    num_stages: int


def decode_tiles(rows: int, requests: int, blocks: int, format: str) -> ScoreTiles:
    """For requests of at most `rows` (token, head) pairs and `blocks` blocks; scores do not depend on it."""
    # Short chunks where there would be too few programs to fill the card.
    chunk = 16 if requests * blocks >= 16 * 1024 else 8 if requests * blocks >= 4096 else 4
    # Two packed blocks in flight in each of three or four programs a processor cover the memory's latency.
    stages = 4 if format == "bfloat16" else 6
    return ScoreTiles(max(16, triton.next_power_of_2(rows)), chunk, True, True, 4, stages)


def prefill_tiles(rows: int, blocks: int) -> ScoreTiles:
    """For one request's `rows` (token, head) pairs against `blocks` blocks; scores do not depend on it."""
    return ScoreTiles(128, 64 if rows >= 8192 else 16, False, False, 4, 4)


_DTYPES = {"nvfp4": torch.int32, "fp8": torch.int64, "bfloat16": torch.bfloat16}


def _key_arguments(lane: Lane) -> tuple[Tensor, Tensor, int, str]:
    """(codes, scales, 16-byte units from block to block, FORMAT).

    Raises:
        ValueError: another layout than the pool's.
    """
    codes, scales = lane.codes, lane.scales
    strides = [codes.stride(0) * codes.element_size()]
    inner = [(codes.stride()[2:], (codes.shape[-1], 1))]
    if scales is not None:
        strides.append(scales.stride(0))
        inner.append((scales.stride()[2:], (8, 1)))
    if codes.shape[1:3] != (1, 128) or any(got != want for got, want in inner) or len(set(strides)) > 1:
        raise ValueError(
            f"index lane is {tuple(codes.shape)} with strides {codes.stride()}, but must be rows of a pool"
        )
    if strides[0] % 16 or codes.data_ptr() % 16:
        raise ValueError(f"index lane's blocks are {strides[0]} bytes apart, but must be 16-byte aligned")
    words = codes.view(_DTYPES[lane.format])
    bytes_ = words if scales is None else scales.view(torch.uint8)
    form = "nvfp4 e4m3" if lane.format == "nvfp4" and lane.contract == "e4m3" else lane.format
    return words, bytes_, strides[0] // 16, form


def decode_scores(
    q: Tensor,
    lane: Lane,
    block_tables: Tensor,
    starts: Tensor,
    positions: Tensor,
    out: Tensor,
    *,
    first_token: int = 0,
    max_tokens: int,
    config: ScoreTiles | None = None,
) -> None:
    """Scores of many requests with few tokens each, in one launch that reads lengths on the device.

    Args:
        q: [T, heads, 128] bf16, contiguous.
        lane: index lane, one head of dim 128: nvfp4, fp8 or bfloat16.
        block_tables: [R, n] int64 block ids, rows contiguous.
        starts: [R + 1] int64: request r has the tokens [starts[r], starts[r + 1]) − first_token of q; none is allowed.
        positions: [T] int64.
        out: [T, heads, ≥ n] fp32, written at [t, :, : positions[t] // 128 + 1] and up to the last block that a
            neighbour of the same request sees (−inf there); the rest is left alone.
        first_token: step's index of q's first token.
        max_tokens: at least every request's; max_tokens · heads ≤ 64.
        config: tiles; None takes `decode_tiles`.
    """
    heads = q.shape[1]
    requests, blocks = block_tables.shape
    t = config or decode_tiles(max_tokens * heads, requests, blocks, lane.format)
    codes, scales, block_stride, form = _key_arguments(lane)
    decode_kernel[(triton.cdiv(blocks, t.chunk), requests)](
        q, codes, scales, block_tables, starts, positions, out,
        first_token, block_tables.stride(0), block_stride, out.stride(1),
        HEADS=heads, ROWS=t.rows, CHUNK=t.chunk, FORMAT=form, KEYS_FIRST=t.keys_first, COLLECT=t.collect,
        STAGES=t.num_stages, PTX=not interpreted(), num_warps=t.num_warps,
    )  # fmt: skip


def prefill_scores(
    q: Tensor, lane: Lane, block_table: Tensor, positions: Tensor, out: Tensor, config: ScoreTiles | None = None
) -> None:
    """Scores of one request's tokens.

    Args:
        q: [T, heads, 128] bf16, contiguous.
        lane: see `decode_scores`.
        block_table: [n] int64.
        positions: [T] int64 ascending, below 128 · n.
        out: [T, heads, ≥ n] fp32, see `decode_scores`; "neighbours" are those of the same tile.
        config: tiles; None takes `prefill_tiles`.
    """
    tokens, heads, _ = q.shape
    t = config or prefill_tiles(tokens * heads, len(block_table))
    codes, scales, block_stride, form = _key_arguments(lane)
    prefill_kernel[(triton.cdiv(tokens * heads, t.rows), triton.cdiv(len(block_table), t.chunk))](
        q, codes, scales, block_table, positions, out, tokens * heads, block_stride, out.stride(1),
        HEADS=heads, ROWS=t.rows, CHUNK=t.chunk, FORMAT=form, KEYS_FIRST=t.keys_first, COLLECT=t.collect,
        STAGES=t.num_stages, PTX=not interpreted(), num_warps=t.num_warps,
    )  # fmt: skip
