"""A lane as kernels see it: the bytes that one layer keeps of one kind of vector, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.kernels import nvfp4

FORMATS = ("float32", "bfloat16", "fp8", "nvfp4")


def variant(format: str, contract: str) -> str:
    """What the registry is asked for: a lane's format, for nvfp4 with the contract."""
    return f"nvfp4 {contract}" if format == "nvfp4" else format


@dataclass(frozen=True)
class Lane:
    """Vectors of `dim` values in blocks of 128 tokens, stored in one of `FORMATS`.

    Attributes:
        format: "float32", "bfloat16", "fp8" (E4M3, saturating, no scale) or "nvfp4".
        codes: [num_blocks, heads, 128, dim] of the format's dtype; for nvfp4 uint8 [..., dim / 2]. A strided view.
        scales: [num_blocks, heads, 128, dim / 16] float8_e4m3fn for nvfp4, else None.
        contract: how nvfp4 is read and its queries are rounded: "exact" or "e4m3" (see `nvfp4`).
    """

    format: str
    codes: Tensor
    scales: Tensor | None = None
    contract: str = "exact"

    @property
    def variant(self) -> str:
        """See `variant`."""
        return variant(self.format, self.contract)

    def read(self, *index: Tensor | int) -> Tensor:
        """Index the leading dims (blocks, heads) → fp32 [..., 128, dim], never a view of the pool."""
        codes = self.codes[index]
        if self.format != "nvfp4":
            return codes.to(torch.float32, copy=True)
        assert self.scales is not None
        return nvfp4.dequantize(codes, self.scales[index], self.contract)

    def query(self, q: Tensor) -> Tensor:
        """The query that this lane's vectors are dotted with: fp32, rounded to E4M3 under the e4m3 contract."""
        return nvfp4.round_to_e4m3(q) if self.format == "nvfp4" and self.contract == "e4m3" else q.float()


def encode(x: Tensor, format: str) -> tuple[Tensor, Tensor | None]:
    """x: [..., dim] float → (codes, scales or None) of a format.

    Raises:
        ValueError: an unknown format.
    """
    if format == "float32":
        return x.float(), None
    if format == "bfloat16":
        return x.to(torch.bfloat16), None
    if format == "fp8":
        return x.float().clamp(-448.0, 448.0).to(torch.float8_e4m3fn), None
    if format == "nvfp4":
        return nvfp4.quantize(x)
    raise ValueError(f"format is {format!r}, but must be one of {', '.join(FORMATS)}")
