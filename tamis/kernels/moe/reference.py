"""Routing and experts token by token, in fp64: slow and obvious."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.linear.reference import linear
from tamis.kernels.packed_weight import Weight, dense
from tamis.kernels.swiglu.reference import swiglu_oai


def route(x: Tensor, weight: Tensor, bias: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """See `cpu.route`."""
    scores = torch.sigmoid(x.double() @ weight.double().T)
    ids, weights = [], []
    for score in scores:
        choice = score + bias.double()
        chosen = sorted(range(len(choice)), key=lambda e: (-float(choice[e]), e))[:top_k]
        picked = score[chosen]
        ids.append(torch.tensor(chosen))
        weights.append(picked / picked.sum())
    return torch.stack(ids), torch.stack(weights)


def experts(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    gate_up_proj: Weight,
    down_proj: Weight,
    *,
    alpha: float,
    limit: float,
) -> Tensor:
    """See `cpu.experts`."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for token, (chosen, weight) in enumerate(zip(expert_ids.tolist(), weights.double(), strict=True)):
        for expert, w in zip(chosen, weight, strict=True):
            hidden = swiglu_oai(dense(gate_up_proj[expert], torch.float64) @ x[token].double(), alpha, limit)
            out[token] += w * (dense(down_proj[expert], torch.float64) @ hidden)
    return out


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
    """See `cpu.moe`."""
    routed = experts(x, expert_ids, weights, gate_up, down, alpha=alpha, limit=limit)
    return scale * routed + linear(swiglu_oai(linear(x, shared_gate_up), alpha, limit), shared_down)
