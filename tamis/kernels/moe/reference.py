"""Routing and experts token by token, in fp64: slow and obvious."""

from __future__ import annotations

import torch
from torch import Tensor

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
    gate_up_proj: Tensor,
    down_proj: Tensor,
    *,
    alpha: float,
    limit: float,
) -> Tensor:
    """See `cpu.experts`."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, (chosen, weight) in enumerate(zip(expert_ids.tolist(), weights.double(), strict=True)):
        for expert, w in zip(chosen, weight, strict=True):
            hidden = swiglu_oai(gate_up_proj[expert].double() @ x[token].double(), alpha, limit)
            out[token] += w * (down_proj[expert].double() @ hidden)
    return out
