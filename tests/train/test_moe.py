"""The training experts compute the serving experts' function, and gradients; the router's bias follows the load."""

from __future__ import annotations

import copy

import torch

from tamis.layers.moe import MoE
from tamis.train.moe import CountingRouter, WideExperts


def random_moe() -> MoE:
    torch.manual_seed(0)
    moe = MoE(
        hidden_size=24,
        intermediate_size=20,
        shared_intermediate_size=16,
        num_experts=5,
        top_k=2,
        scale=2.0,
        alpha=1.702,
        limit=7.0,
    )
    for parameter in moe.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    moe.gate.e_score_correction_bias.normal_(std=0.1)
    return moe


def test_same_output_and_gradients_as_serving() -> None:
    serving = random_moe()
    training = copy.deepcopy(serving)
    training.gate, training.experts = CountingRouter(training.gate), WideExperts(training.experts)
    x = torch.randn(33, 24)

    expected, found = serving(x), training(x)
    expected.square().sum().backward()
    found.square().sum().backward()

    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    theirs = dict(serving.named_parameters())
    assert set(theirs) == {name for name, _ in training.named_parameters()}
    for name, parameter in training.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=1e-2, rtol=1e-3)


def test_balance_lowers_busy_experts_and_lifts_idle_ones() -> None:
    moe = random_moe()
    router = CountingRouter(moe.gate)
    before = router.e_score_correction_bias.clone()
    ids, _ = router(torch.randn(50, 24))
    load = torch.bincount(ids.flatten(), minlength=5).float()
    assert torch.equal(router.load, load)

    router.balance(0.01)

    change = router.e_score_correction_bias - before
    torch.testing.assert_close(change, 0.01 * torch.sign(load.mean() - load))
    assert not router.load.any()
