"""The gated MLP of dense layers and of the shared expert."""

from __future__ import annotations

from torch import Tensor, nn

from tamis.kernels import swiglu
from tamis.layers.linear import Linear


class GatedMLP(nn.Module):
    """down(SwiGLU-OAI(gate(x), up(x))); gate and up are one matrix, gate first."""

    def __init__(self, hidden_size: int, intermediate_size: int, alpha: float, limit: float):
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)
        self.alpha = alpha
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size] → same."""
        return self.down_proj(swiglu.swiglu_oai(self.gate_up_proj(x), self.alpha, self.limit))
