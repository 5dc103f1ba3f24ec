"""Mixture of experts: sigmoid router with correction bias, routed experts, one shared expert."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tamis.kernels import moe as moe_kernel
from tamis.layers.mlp import GatedMLP
from tamis.models.config import M3Config


class Router(nn.Module):
    """Chooses experts: top-k of σ(logits) + bias, weighted by σ(logits) renormalised to 1. All fp32.

    Attributes:
        weight: [num_experts, hidden_size] fp32.
        e_score_correction_bias: [num_experts] fp32, used for the choice only.
    """

    def __init__(self, config: M3Config):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [T, hidden_size] → (expert ids [T, k] int64, weights [T, k] fp32)."""
        return moe_kernel.route(x, self.weight, self.e_score_correction_bias, self.top_k)


class Experts(nn.Module):
    """The routed experts' weights: `gate_up_proj` [E, 2·I, H] (gate first) and `down_proj` [E, H, I]."""

    def __init__(self, config: M3Config):
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(config.num_experts, 2 * size, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(config.num_experts, config.hidden_size, size))
        self.alpha = config.swiglu_alpha
        self.limit = config.swiglu_limit

    def forward(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the chosen experts' outputs: [T, hidden_size] in x's dtype."""
        return moe_kernel.experts(
            x, expert_ids, weights, self.gate_up_proj, self.down_proj, alpha=self.alpha, limit=self.limit
        )


class MoE(nn.Module):
    """`routed_scaling_factor · experts(x) + shared_expert(x)`."""

    def __init__(self, config: M3Config):
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_experts = GatedMLP(
            config.hidden_size, config.shared_intermediate_size, config.swiglu_alpha, config.swiglu_limit
        )
        self.scale = config.routed_scaling_factor

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size] → same."""
        expert_ids, weights = self.gate(x)
        return self.experts(x, expert_ids, weights) * self.scale + self.shared_experts(x)
