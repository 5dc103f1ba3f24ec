"""The mixture in torch's own bf16 operations: what one would run without packed kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.kernels.packed_weight import Weight, dense
from tamis.kernels.swiglu import swiglu_oai


class GroupedBf16:
    """Unpacked weights (14.5 GB for the routed experts of one M3.1 layer) and `torch._grouped_mm`."""

    def __init__(self, gate_up: Weight, down: Weight, shared: list[tuple[Weight, Weight]]):
        self.gate_up, self.down = self._unpack(gate_up), self._unpack(down)
        self.shared = {id(a): (dense(a, torch.bfloat16), dense(b, torch.bfloat16)) for a, b in shared}

    @staticmethod
    def _unpack(weight: Weight) -> Tensor:
        # One expert at a time: the fp32 that unpacking goes through would not fit for all.
        out = torch.empty(weight.shape, dtype=torch.bfloat16, device=weight.device)
        for expert in range(len(out)):
            out[expert] = dense(weight[expert], torch.bfloat16)
        return out

    def __call__(
        self,
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
        """As `kernels.moe.moe`; the packed weights only name the unpacked ones."""
        order = torch.argsort(expert_ids.flatten())
        experts = torch.arange(len(self.gate_up), device=x.device)
        ends = torch.searchsorted(expert_ids.flatten()[order], experts, right=True).to(torch.int32)
        rows = x[order // expert_ids.shape[1]]
        hidden = swiglu_oai(torch._grouped_mm(rows, self.gate_up.mT, offs=ends), alpha, limit)
        routed = torch._grouped_mm(hidden, self.down.mT, offs=ends) * weights.flatten()[order, None].to(x.dtype)
        a, b = self.shared[id(shared_gate_up)]
        shared = torch.nn.functional.linear(swiglu_oai(torch.nn.functional.linear(x, a), alpha, limit), b)
        return shared.index_add(0, order // expert_ids.shape[1], routed, alpha=scale)
