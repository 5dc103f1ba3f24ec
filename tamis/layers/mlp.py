"""The gated MLP of dense layers and of the shared expert."""

from __future__ import annotations

from torch import Tensor, nn

from tamis.kernels import swiglu
from tamis.layers.linear import Linear
from tamis.layers.weight import PLAIN


class GatedMLP(nn.Module):
    """down(SwiGLU-OAI(gate(x), up(x))); gate and up are one matrix, gate first.

    Args:
        packings: how gate and up, and down, are held (see `layers/weight.py`).
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        alpha: float,
        limit: float,
        packings: tuple[str, str] = (PLAIN, PLAIN),
    ):
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size, packings[0])
        self.down_proj = Linear(intermediate_size, hidden_size, packings[1])
        self.alpha = alpha
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size] → same."""
        return self.down_proj(swiglu.swiglu_oai(self.gate_up_proj(x), self.alpha, self.limit))
