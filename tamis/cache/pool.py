"""The pool: one tensor of rows, and each layer's lanes as strided views of it."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from tamis.cache.layout import LaneSpan, RowLayout
from tamis.config import BLOCK_TOKENS
from tamis.kernels.lane import Lane

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "nvfp4": torch.uint8,
}


class RowPool:
    """`num_blocks` rows on a device. Block 0 belongs to nobody: padding is written there.

    Attributes:
        rows: [num_blocks, row_bytes] uint8.
        layout: where the lanes lie.
        contract: how NVFP4 lanes are read ("exact" or "e4m3").
    """

    def __init__(self, layout: RowLayout, num_blocks: int, device: torch.device, contract: str = "exact"):
        self.layout = layout
        self.contract = contract
        self.rows = _zeros(num_blocks, layout.row_bytes, device)
        self._kv = [(self._lane(k), self._lane(v)) for k, v in zip(layout.k, layout.v, strict=True)]
        self._index = {layer: self._lane(span) for layer, span in layout.index.items()}

    def kv_lanes(self, layer: int) -> tuple[Lane, Lane]:
        """K and V of a layer: codes [num_blocks, num_kv_heads, 128, …]."""
        return self._kv[layer]

    def index_lane(self, layer: int) -> Lane:
        """Index keys of an MSA layer: codes [num_blocks, 1, 128, …]."""
        return self._index[layer]

    def _lane(self, span: LaneSpan) -> Lane:
        codes = self._view(span.codes_offset, span.codes_bytes, _DTYPES[span.format], span.heads)
        scales = None
        if span.scales_offset is not None:
            scales = self._view(span.scales_offset, span.scales_bytes, torch.float8_e4m3fn, span.heads)
        return Lane(span.format, codes, scales, self.contract)

    def _view(self, offset: int, size: int, dtype: torch.dtype, heads: int) -> Tensor:
        return self.rows[:, offset : offset + size].view(dtype).unflatten(-1, (heads, BLOCK_TOKENS, -1))


def _zeros(num_blocks: int, row_bytes: int, device: torch.device) -> Tensor:
    """Zeroed rows, on a CPU as fresh pages of the system: a row takes memory when it is first written.

    `torch.zeros` would write them all, and a small model would start with gigabytes of unused pool.
    """
    if device.type != "cpu":
        return torch.zeros(num_blocks, row_bytes, dtype=torch.uint8, device=device)
    pages = mmap.mmap(-1, num_blocks * row_bytes)
    return torch.frombuffer(pages, dtype=torch.uint8).view(num_blocks, row_bytes)
