"""Routing and experts in torch operations (any device, differentiable): each chosen expert runs once over its tokens.

A token's sum runs over its experts in ascending id, whatever else is in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.linear import linear
from tamis.kernels.packed_weight import Weight
from tamis.kernels.swiglu import swiglu_oai


def route(x: Tensor, weight: Tensor, bias: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Sigmoid routing in fp32.

    Args:
        x: [T, H] float.
        weight: [E, H] fp32.
        bias: [E] fp32, added for the choice only.
        top_k: experts a token.

    Returns:
        ids [T, k] int64 (best first; equal scores in ascending id), weights [T, k] fp32 that sum to 1.
    """
    scores = 1.0 / (1.0 + torch.exp(-linear(x.float(), weight)))
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices
    ids = order[:, :top_k]
    chosen = scores.gather(1, ids)
    return ids, chosen / chosen.sum(-1, keepdim=True)


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
    """Weighted sum of the chosen experts.

    Args:
        x: [T, H] float.
        expert_ids: [T, k] int64, distinct in a row.
        weights: [T, k] fp32.
        gate_up_proj: [E, 2·I, H], gate first; down_proj: [E, H, I]; plain in x's dtype, or packed: then one chosen
            expert at a time is unpacked.
        alpha, limit: of SwiGLU-OAI.

    Returns:
        [T, H] in x's dtype. Reads the weights of the experts that are chosen at least once.
    """
    out = torch.zeros_like(x)
    flat = expert_ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=gate_up_proj.shape[0]).tolist()
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        pairs = order[start : start + count]
        start += count
        tokens = pairs // expert_ids.shape[1]
        hidden = swiglu_oai(linear(x[tokens], gate_up_proj[expert]), alpha, limit)
        y = linear(hidden, down_proj[expert]) * weights.flatten()[pairs, None].to(x.dtype)
        out = out.index_add(0, tokens, y)
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
    """`scale · experts(x) + shared expert(x)`.

    Args:
        x, expert_ids, weights, gate_up, down, alpha, limit: as `experts` takes them.
        shared_gate_up: [2·S, H], gate first; shared_down: [H, S]; plain in x's dtype, or packed in a format of its own.
        scale: factor of the routed sum.

    Returns:
        [T, H] in x's dtype.
    """
    routed = experts(x, expert_ids, weights, gate_up, down, alpha=alpha, limit=limit)
    return routed * scale + linear(swiglu_oai(linear(x, shared_gate_up), alpha, limit), shared_down)
