"""Mixture of experts: sigmoid router with correction bias, routed experts, one shared expert."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tamis.kernels import moe as moe_kernel
from tamis.layers.mlp import GatedMLP


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
    """The routed experts' weights: `gate_up_proj` [E, 2·I, H] (gate first) and `down_proj` [E, H, I]."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_experts: int, alpha: float, limit: float):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, 2 * intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size))
        self.alpha = alpha
        self.limit = limit

    def forward(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the chosen experts' outputs: [T, hidden_size] in x's dtype."""
        return moe_kernel.experts(
            x, expert_ids, weights, self.gate_up_proj, self.down_proj, alpha=self.alpha, limit=self.limit
        )


class MoE(nn.Module):
    """`scale · experts(x) + shared_expert(x)`."""

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
    ):
        super().__init__()
        self.gate = Router(hidden_size, num_experts, top_k)
        self.experts = Experts(hidden_size, intermediate_size, num_experts, alpha, limit)
        self.shared_experts = GatedMLP(hidden_size, shared_intermediate_size, alpha, limit)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size] → same."""
        expert_ids, weights = self.gate(x)
        return self.experts(x, expert_ids, weights) * self.scale + self.shared_experts(x)
