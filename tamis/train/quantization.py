"""Quantisation-aware training: what will be quantised later is rounded now, and gradients pass straight through.

The layout is M3.1's: linears in MXFP8, routed experts in NVFP4 with a global scale a matrix, K, V and index keys as an
NVFP4 cache holds them under the e4m3 contract, queries in E4M3; embeddings, head, router and norms as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import mxfp8, nvfp4
from tamis.kernels.linear import linear
from tamis.kernels.packed_weight import quantize_nvfp4
from tamis.layers.linear import Linear
from tamis.models.m3 import M3ForCausalLM


def _straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """The rounded value, with the gradient of x."""
    return x + (rounded.to(x.dtype) - x).detach()


def fake_mxfp8(weight: Tensor) -> Tensor:
    """weight: [N, K] float → same shape and dtype."""
    with torch.no_grad():
        rounded = mxfp8.dequantize(*mxfp8.quantize(weight))
    return _straight_through(weight, rounded)


def fake_nvfp4(weight: Tensor) -> Tensor:
    """weight: [..., N, K] float, each matrix with its own global scale → same shape and dtype."""
    with torch.no_grad():
        rounded = quantize_nvfp4(weight).dequantize()
    return _straight_through(weight, rounded)


def fake_cached(x: Tensor) -> Tensor:
    """Keys or values [..., D] float, D a multiple of 16, as an NVFP4 lane gives them back under the e4m3 contract."""
    with torch.no_grad():
        rounded = nvfp4.cpu.dequantize(*nvfp4.quantize(x), contract="e4m3")
    return _straight_through(x, rounded)


def fake_query(x: Tensor) -> Tensor:
    """Queries as the e4m3 contract rounds them."""
    with torch.no_grad():
        rounded = nvfp4.round_to_e4m3(x)
    return _straight_through(x, rounded)


class QuantizedLinear(Linear):
    """`Linear` whose weight is rounded to MXFP8 on the way; the parameter itself stays fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """See `Linear.forward`."""
        return linear(x, fake_mxfp8(self.weight))


def quantize_linears(model: M3ForCausalLM) -> None:
    """Turn every linear of the decoder layers into a `QuantizedLinear`; parameters stay the same objects."""
    for module in model.layers.modules():
        if type(module) is Linear:
            module.__class__ = QuantizedLinear
