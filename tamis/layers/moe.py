"""Mixture of experts: sigmoid router with correction bias, routed experts, one shared expert."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tamis.kernels import moe as moe_kernel
from tamis.kernels.packed_weight import Weight
from tamis.layers.mlp import GatedMLP
from tamis.layers.weight import PLAIN, allocate, weight_of


class Router(nn.Module):
    """Chooses experts: top-k of σ(logits) + bias, weighted by σ(logits) renormalised to 1. All fp32.

    Attributes:
        weight: [num_experts, hidden_size] fp32.
        e_score_correction_bias: [num_experts] fp32, used for the choice only.
    """

    def __init__(self, hidden_size: int, num_experts: int, top_k: int):
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size, dtype=torch.float32))
        self.e_score_correction_bias: Tensor
        self.register_buffer("e_score_correction_bias", torch.zeros(num_experts, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [T, hidden_size] → (expert ids [T, k] int64, weights [T, k] fp32)."""
        return moe_kernel.route(x, self.weight, self.e_score_correction_bias, self.top_k)


class Experts(nn.Module):
    """The routed experts' weights: `gate_up_proj` [E, 2·I, H] (gate first) and `down_proj` [E, H, I].

    Attributes:
        gate_up_proj, down_proj: parameters, when they are plain.
        packings: name → how it is held (see `layers/weight.py`).
    """

    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        alpha: float,
        limit: float,
        packings: tuple[str, str] = (PLAIN, PLAIN),
    ):
        super().__init__()
        self.packings = dict(zip(("gate_up_proj", "down_proj"), packings, strict=True))
        allocate(self, "gate_up_proj", (num_experts, 2 * intermediate_size, hidden_size), packings[0])
        allocate(self, "down_proj", (num_experts, hidden_size, intermediate_size), packings[1])
        self.alpha = alpha
        self.limit = limit

    def matrix(self, name: str) -> Weight:
        """`gate_up_proj` or `down_proj`, plain or packed."""
        return weight_of(self, name, self.packings[name])

    def forward(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the chosen experts' outputs: [T, hidden_size] in x's dtype."""
        gate_up, down = self.matrix("gate_up_proj"), self.matrix("down_proj")
        return moe_kernel.experts(x, expert_ids, weights, gate_up, down, alpha=self.alpha, limit=self.limit)


class MoE(nn.Module):
    """`scale · experts(x) + shared_expert(x)`.

    Args:
        expert_packings, shared_packings: how gate and up, and down, are held (see `layers/weight.py`).
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        shared_intermediate_size: int,
        num_experts: int,
        top_k: int,
        scale: float,
        alpha: float,
        limit: float,
        expert_packings: tuple[str, str] = (PLAIN, PLAIN),
        shared_packings: tuple[str, str] = (PLAIN, PLAIN),
    ):
        super().__init__()
        self.gate = Router(hidden_size, num_experts, top_k)
        self.experts = Experts(hidden_size, intermediate_size, num_experts, alpha, limit, expert_packings)
        self.shared_experts = GatedMLP(hidden_size, shared_intermediate_size, alpha, limit, shared_packings)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size] → same."""
        expert_ids, weights = self.gate(x)
        if type(self.experts) is not Experts:
            # Training brings experts (and linears) that compute in their own way.
            return self.experts(x, expert_ids, weights) * self.scale + self.shared_experts(x)
        return moe_kernel.moe(
            x,
            expert_ids,
            weights,
            self.experts.matrix("gate_up_proj"),
            self.experts.matrix("down_proj"),
            self.shared_experts.gate_up_proj.matrix,
            self.shared_experts.down_proj.matrix,
            scale=self.scale,
            alpha=self.experts.alpha,
            limit=self.experts.limit,
        )
