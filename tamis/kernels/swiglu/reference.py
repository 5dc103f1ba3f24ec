"""SwiGLU-OAI as the formula stands, in fp64."""

from __future__ import annotations

import torch
from torch import Tensor


def swiglu_oai(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate_up: [..., 2·I], gate first → [..., I] fp64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1.0)
