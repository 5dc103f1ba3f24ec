"""Mixture of experts for training: the same function and parameters as `layers.moe`, without a host sync.

With few small experts it is fastest to run them all as one wide MLP and to weight what comes out: experts that a token
did not choose have weight 0, so neither the output nor any gradient sees them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tamis.kernels.swiglu import swiglu_oai
from tamis.layers.moe import Experts, MoE, Router
from tamis.models.m3 import M3ForCausalLM
from tamis.train.quantization import fake_nvfp4


class CountingRouter(Router):
    """`Router` that counts how many tokens chose each expert; fp32 also under autocast.

    Attributes:
        load: [num_experts] fp32, tokens since `balance` last ran.
    """

    def __init__(self, router: Router):
        nn.Module.__init__(self)
        self.top_k = router.top_k
        self.weight = router.weight
        self.register_buffer("e_score_correction_bias", router.e_score_correction_bias)
        self.load: Tensor
        self.register_buffer("load", torch.zeros_like(router.e_score_correction_bias), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Router.forward`. Choices are those of a plain top-k: exact ties, rare in fp32, may differ."""
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(x.float() @ self.weight.float().T)
        expert_ids = (scores.detach() + self.e_score_correction_bias).topk(self.top_k, dim=-1).indices
        chosen = scores.gather(1, expert_ids)
        if self.training:
            flat = expert_ids.flatten()
            self.load.index_add_(0, flat, torch.ones_like(flat, dtype=self.load.dtype))
        return expert_ids, chosen / chosen.sum(-1, keepdim=True)

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Move the bias of every expert by `rate`, down where it had more than the mean load, up where less."""
        self.e_score_correction_bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class WideExperts(Experts):
    """`Experts` as one MLP of width num_experts · intermediate_size.

    Attributes:
        quantized: round the weights to NVFP4 on the way (see `quantization`).
    """

    def __init__(self, experts: Experts):
        nn.Module.__init__(self)
        self.gate_up_proj = experts.gate_up_proj
        self.down_proj = experts.down_proj
        self.alpha = experts.alpha
        self.limit = experts.limit
        self.quantized = False

    def _weights(self) -> tuple[Tensor, Tensor]:
        if not self.quantized:
            return self.gate_up_proj, self.down_proj
        # On disk gate and up are two matrices, each with its own global scale.
        halves = self.gate_up_proj.unflatten(1, (2, -1))
        return fake_nvfp4(halves).flatten(1, 2), fake_nvfp4(self.down_proj)

    def forward(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """See `Experts.forward`."""
        num_experts, width, hidden_size = self.gate_up_proj.shape
        gate_up_proj, down_proj = self._weights()
        share = torch.zeros(x.shape[0], num_experts, dtype=weights.dtype, device=x.device)
        share = share.scatter(1, expert_ids, weights)
        gate_up = nn.functional.linear(x, gate_up_proj.reshape(num_experts * width, hidden_size))
        hidden = swiglu_oai(gate_up.unflatten(-1, (num_experts, width)), self.alpha, self.limit)
        hidden = hidden * share[:, :, None].to(hidden.dtype)
        down = down_proj.transpose(1, 2).reshape(num_experts * width // 2, hidden_size)
        return hidden.flatten(1) @ down.to(hidden.dtype)


def prepare_for_training(model: M3ForCausalLM) -> list[CountingRouter]:
    """Swap routers and experts for the classes above; parameters stay the same objects.

    Returns:
        The routers, to be balanced after each optimiser step.
    """
    routers = []
    for module in model.modules():
        if isinstance(module, MoE):
            module.gate = CountingRouter(module.gate)
            module.experts = WideExperts(module.experts)
            routers.append(module.gate)
    return routers
