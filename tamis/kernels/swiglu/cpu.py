"""SwiGLU-OAI in torch operations (any device, differentiable).

σ is written as 1 / (1 + exp(−x)): torch's own `sigmoid` rounds differently in the scalar tail of its vector loop, so
an element's bits would depend on where in the batch it stands; `exp` and the exact operations around it do not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def swiglu_oai(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate_up: [..., 2·I] float, gate first → [..., I], same dtype. Reads 2·I and writes I values a row."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return gate / (1.0 + torch.exp(-alpha * gate)) * (up + 1.0)
