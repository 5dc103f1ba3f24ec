"""The row: all that any layer keeps of one block, contiguous. The one place that knows offsets.

`row = Σ layers [K codes | K scales | V codes | V scales] + Σ MSA layers [index codes | index scales] + draft lanes`,
every part 16-byte aligned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tamis.config import BLOCK_TOKENS

_ALIGNMENT_BYTES = 16
_BITS = {"float32": 32, "bfloat16": 16, "fp8": 8, "nvfp4": 4}


@dataclass(frozen=True)
class LaneSpan:
    """Where one lane lies in a row, in bytes. `scales` is None when the format has none."""

    format: str
    heads: int
    dim: int
    codes_offset: int
    codes_bytes: int
    scales_offset: int | None
    scales_bytes: int

    @property
    def end(self) -> int:
        """First byte after the lane, aligned."""
        end = self.codes_offset + self.codes_bytes
        if self.scales_offset is not None:
            end = self.scales_offset + self.scales_bytes
        return _align(end)


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _span(offset: int, format: str, heads: int, dim: int) -> LaneSpan:
    codes = heads * BLOCK_TOKENS * dim * _BITS[format] // 8
    scales = heads * BLOCK_TOKENS * dim // 16 if format == "nvfp4" else 0
    return LaneSpan(format, heads, dim, offset, codes, _align(offset + codes) if scales else None, scales)


@dataclass(frozen=True)
class RowLayout:
    """Offsets of every lane in a row.

    Attributes:
        k, v: one span a layer.
        index: layer → span, MSA layers only.
        draft_k, draft_v: one span a draft layer.
        row_bytes: the row's size.
    """

    k: tuple[LaneSpan, ...]
    v: tuple[LaneSpan, ...]
    index: dict[int, LaneSpan]
    draft_k: tuple[LaneSpan, ...] = field(default=())
    draft_v: tuple[LaneSpan, ...] = field(default=())
    row_bytes: int = 0


def row_layout(
    *,
    sparse_layers: tuple[bool, ...],
    num_kv_heads: int,
    head_dim: int,
    index_head_dim: int,
    kv_format: str,
    index_format: str,
    num_draft_layers: int = 0,
    draft_format: str = "fp8",
) -> RowLayout:
    """Lay out a row.

    Args:
        sparse_layers: per layer, whether it has an index lane.
        num_kv_heads: KV heads held here (a rank's share); draft layers have as many, of `head_dim` too.
        kv_format, index_format, draft_format: "float32", "bfloat16", "fp8" or "nvfp4".
    """
    offset = 0

    def next_span(format: str, heads: int, dim: int) -> LaneSpan:
        nonlocal offset
        span = _span(offset, format, heads, dim)
        offset = span.end
        return span

    kv = [
        (next_span(kv_format, num_kv_heads, head_dim), next_span(kv_format, num_kv_heads, head_dim))
        for _ in sparse_layers
    ]
    index = {layer: next_span(index_format, 1, index_head_dim) for layer, sparse in enumerate(sparse_layers) if sparse}
    draft = [
        (next_span(draft_format, num_kv_heads, head_dim), next_span(draft_format, num_kv_heads, head_dim))
        for _ in range(num_draft_layers)
    ]
    return RowLayout(
        k=tuple(k for k, _ in kv),
        v=tuple(v for _, v in kv),
        index=index,
        draft_k=tuple(k for k, _ in draft),
        draft_v=tuple(v for _, v in draft),
        row_bytes=offset,
    )
