"""Expert routing, the routed experts, and the whole mixture with its shared expert."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels import registry
from tamis.kernels.moe import cpu
from tamis.kernels.moe.cpu import experts, route
from tamis.kernels.packed_weight import Weight, weight_format

__all__ = ["experts", "moe", "route"]


def moe(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    gate_up: Weight,
    down: Weight,
    shared_gate_up: Weight,
    shared_down: Weight,
    *,
    scale: float,
    alpha: float,
    limit: float,
) -> Tensor:
    """See `cpu.moe`; served by the native or the Triton kernels where the registry finds them."""
    arguments = (x, expert_ids, weights, gate_up, down, shared_gate_up, shared_down)
    name = registry.select("moe", x.device.type, _variant(*arguments)).name
    if name == "native":
        from tamis.kernels.moe import native

        return native.moe(*arguments, scale=scale, alpha=alpha, limit=limit)
    if name == "triton":
        from tamis.kernels.moe import triton

        return triton.moe(*arguments, scale=scale, alpha=alpha, limit=limit)
    return cpu.moe(*arguments, scale=scale, alpha=alpha, limit=limit)


def _variant(x: Tensor, expert_ids: Tensor, weights: Tensor, *matrices: Weight) -> str:
    """What the registry is asked for: "routed format+shared format", and what else sets the case apart."""
    gate_up, down, shared_gate_up, shared_down = (weight_format(m) for m in matrices)
    variant = f"{gate_up}+{shared_gate_up}"
    if (gate_up, shared_gate_up) != (down, shared_down):
        variant += f" with {down}+{shared_down} down"
    floats = [x, weights, *(m for m in matrices if isinstance(m, Tensor))]
    if torch.is_grad_enabled() and any(t.requires_grad for t in floats):
        variant += " with gradients"
    dtypes = {str(t.dtype) for t in (x, *(m for m in matrices if isinstance(m, Tensor)))}
    return variant if dtypes == {"torch.bfloat16"} else f"{variant} in {', '.join(sorted(dtypes))}"
