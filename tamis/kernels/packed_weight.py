"""Quantised weight matrices as they lie in memory: what `linear` and `moe` take in place of a plain tensor.

Every tensor may have leading dims (experts); the last two are those of the matrix, [N out, K in].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from tamis.kernels import mxfp8, nvfp4

W = TypeVar("W", bound="PackedWeight")


@dataclass(frozen=True)
class PackedWeight:
    """Base of the formats: every field is a tensor whose last-but-one dim (last, for `row_scales`) is N.

    Attributes:
        format: name of the format, as the registry's variants spell it.
    """

    format: ClassVar[str]

    @property
    def shape(self) -> torch.Size:
        """Shape of the matrix that the codes stand for: [..., N, K]."""
        raise NotImplementedError

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[..., N, K] in `dtype`; exact in fp32 up to the rounding of one product (NVFP4's row scale)."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """Field name → tensor, in the order of the fields."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next(iter(self.tensors().values())).device

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def __getitem__(self: W, index: int) -> W:
        """One matrix of a stack."""
        return type(self)(**{name: tensor[index] for name, tensor in self.tensors().items()})

    @classmethod
    def cat(cls: type[W], parts: Sequence[W]) -> W:
        """Matrices of one K joined along N."""
        names = [f.name for f in fields(cls)]
        dims = {name: -1 if name == "row_scales" else -2 for name in names}
        return cls(**{name: _cat([getattr(p, name) for p in parts], dims[name]) for name in names})


def _cat(parts: list[Tensor], dim: int) -> Tensor:
    # torch has no concatenation of 8-bit floats on every backend: their bytes are joined.
    dtype = parts[0].dtype
    if dtype.itemsize == 1:
        return torch.cat([p.view(torch.uint8) for p in parts], dim=dim).view(dtype)
    return torch.cat(parts, dim=dim)


@dataclass(frozen=True)
class MXFP8Weight(PackedWeight):
    """w = e4m3 · 2^(scale − 127).

    Attributes:
        codes: [..., N, K] float8_e4m3fn, K a multiple of 32.
        scales: [..., N, K / 32] uint8, E8M0.
    """

    format: ClassVar[str] = "mxfp8"

    codes: Tensor
    scales: Tensor

    @property
    def shape(self) -> torch.Size:
        """See `PackedWeight`."""
        return self.codes.shape

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """See `PackedWeight`; exact in bf16 too."""
        return mxfp8.dequantize(self.codes, self.scales).to(dtype)


@dataclass(frozen=True)
class NVFP4Weight(PackedWeight):
    """w = e2m1 · scale · row_scale.

    A checkpoint's one global scale a matrix (`weight_scale_2`, or 1 / `weight_global_scale`) stands once a row here, so
    that matrices with different ones can be joined.

    Attributes:
        codes: [..., N, K / 2] uint8, low nibble = even column; K a multiple of 16.
        scales: [..., N, K / 16] float8_e4m3fn.
        row_scales: [..., N] fp32.
    """

    format: ClassVar[str] = "nvfp4"

    codes: Tensor
    scales: Tensor
    row_scales: Tensor

    @property
    def shape(self) -> torch.Size:
        """See `PackedWeight`."""
        return torch.Size((*self.codes.shape[:-1], 2 * self.codes.shape[-1]))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """See `PackedWeight`."""
        return (nvfp4.dequantize(self.codes, self.scales) * self.row_scales[..., None]).to(dtype)


Weight = Tensor | PackedWeight


def dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The matrix itself in `dtype`; a plain tensor of that dtype comes back as it is."""
    return weight.to(dtype) if isinstance(weight, Tensor) else weight.dequantize(dtype)


def weight_format(weight: Weight) -> str:
    """ "plain", "mxfp8" or "nvfp4"."""
    return "plain" if isinstance(weight, Tensor) else weight.format


def quantize_mxfp8(weight: Tensor) -> MXFP8Weight:
    """weight: [..., N, K] float."""
    return MXFP8Weight(*mxfp8.quantize(weight))


def quantize_nvfp4(weight: Tensor) -> NVFP4Weight:
    """weight: [..., N, K] float; one global scale a matrix, amax / (6 · 448), so that the scales use E4M3's range.

    At least 2^−126, so that its reciprocal, which one layout stores, is finite.
    """
    amax = weight.float().abs().amax((-2, -1), keepdim=True)
    # A matrix of zeros has no scale to take: any does.
    global_scale = torch.where(amax > 0, (amax / (6.0 * 448.0)).clamp_min(2.0**-126), 1.0)
    codes, scales = nvfp4.quantize(weight.float() / global_scale)
    row_scales = global_scale[..., 0].expand(weight.shape[:-1]).contiguous()
    return NVFP4Weight(codes, scales, row_scales)
