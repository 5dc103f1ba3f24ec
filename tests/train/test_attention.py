"""The training attention against the kernels that serve, and what the index branch learns from."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tamis.kernels.topk_blocks.reference import select_blocks
from tamis.models.m3 import M3ForCausalLM
from tamis.train.attention import TrainAttention
from tamis.train.loop import gapped_positions
from tamis.train.presets import TOY
from tamis.train.quantization import fake_cached, fake_query
from tamis.train.selected_attention import tiles_of

CONFIG = dataclasses.replace(TOY.config(), topk_blocks=3, num_heads=4, num_kv_heads=2, index_num_heads=2, head_dim=16)


def draws(rows: int, length: int, *, seed: int = 0) -> list[torch.Tensor]:
    """q, k, v, index_q, index_k of random tokens."""
    torch.manual_seed(seed)
    heads = (CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.num_kv_heads, CONFIG.index_num_heads)
    tensors = [torch.randn(rows * length, h, 16) for h in heads]
    return [*tensors, torch.randn(rows * length, 16)]


@pytest.mark.parametrize("length", [1, 127, 129, 384, 385, 700])
def test_output_is_softmax_over_selected_tokens(length: int) -> None:
    rows = 2
    q, k, v, index_q, index_k = draws(rows, length)
    out = TrainAttention(CONFIG, rows, length).attend(1, q, k, v, index_q, index_k).unflatten(0, (rows, length))

    positions = torch.arange(length)
    for row in range(rows):
        part = slice(row * length, (row + 1) * length)
        tokens = torch.einsum("thd,jd->thj", index_q[part], index_k[part])
        tokens = tokens.masked_fill(positions > positions[:, None, None], -torch.inf)
        blocks = torch.nn.functional.pad(tokens, (0, -length % 128), value=-torch.inf).unflatten(-1, (-1, 128)).amax(-1)
        chosen = select_blocks(blocks, positions, k=3, init=0, local=1)
        for head in range(CONFIG.num_heads):
            kv = head // 2
            for t in {0, length // 2, length - 1}:
                seen = [j for j in range(t + 1) if j // 128 in chosen[t, kv].tolist()]
                weights = (k[part][seen, kv] @ q[part][t, head] * 16**-0.5).softmax(0)
                torch.testing.assert_close(out[row, t, head], weights @ v[part][seen, kv], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sees_all", [True, False])
@pytest.mark.parametrize("length", [200, 600])
def test_index_loss_is_the_kl_divergence(length: int, sees_all: bool) -> None:
    q, k, v, index_q, index_k = draws(1, length, seed=1)
    queries = torch.tensor([[0, length // 2, length - 1]])
    attention = TrainAttention(CONFIG, 1, length, queries=queries, index_sees_all=sees_all)

    attention.attend(1, q, k, v, index_q.requires_grad_(), index_k)

    tokens = torch.einsum("thd,jd->thj", index_q, index_k).detach()
    expected = []
    for t in queries[0].tolist():
        for kv in range(2):
            scores = tokens[t, kv, : t + 1]
            best = {b: float(scores[b * 128 : (b + 1) * 128].max()) for b in range(t // 128 + 1)}
            best[t // 128] = float("inf")
            kept = sorted(best, key=lambda b: -best[b])[: 100 if sees_all else 3]
            seen = [j for j in range(t + 1) if j // 128 in kept]
            main = torch.stack([k[seen, kv] @ q[t, h] * 16**-0.5 for h in (2 * kv, 2 * kv + 1)]).softmax(-1).mean(0)
            expected.append((main * (main.log() - scores[seen].log_softmax(0))).sum())
    torch.testing.assert_close(attention.index_losses[0], torch.stack(expected).mean(), atol=1e-5, rtol=1e-4)


def test_index_loss_reaches_the_index_branch_only() -> None:
    torch.manual_seed(0)
    model = M3ForCausalLM(TOY.config())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    attention = TrainAttention(model.config, 1, 64, queries=torch.arange(64)[None])

    model(torch.arange(64), torch.arange(64), attention, 64)
    attention.index_losses[1].backward()

    reached = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert reached == {f"layers.1.self_attn.index_{x}.weight" for x in ("q_proj", "k_proj", "q_norm", "k_norm")}


def test_tiles_hold_the_blocks_that_some_query_selected() -> None:
    torch.manual_seed(2)
    selected = torch.rand(2, 2, 384, 3) < 0.004

    counts, ids = tiles_of(selected, group_size=2)

    assert counts.shape == (2, 4, 3) and counts.max() < 3
    for row in range(2):
        for head in range(4):
            for tile in range(3):
                seen = selected[row, head // 2, 128 * tile : 128 * tile + 128].any(0).nonzero()[:, 0].tolist()
                assert ids[row, head, tile, : counts[row, head, tile]].tolist() == seen


def test_nvfp4_cache_rounds_what_is_attended_to() -> None:
    q, k, v, index_q, index_k = draws(1, 400, seed=3)
    plain = TrainAttention(CONFIG, 1, 400).attend(1, q, k, v, index_q, index_k)
    cached = TrainAttention(CONFIG, 1, 400, nvfp4_cache=True).attend(1, q, k, v, index_q, index_k)
    rounded = [fake_query(q), fake_cached(k), fake_cached(v), fake_query(index_q), fake_cached(index_k)]
    by_hand = TrainAttention(CONFIG, 1, 400).attend(1, *rounded)
    assert torch.equal(cached, by_hand) and not torch.allclose(cached, plain, atol=1e-3)


def test_positions_leap_and_stay_in_the_context() -> None:
    generator = torch.Generator().manual_seed(0)
    positions = gapped_positions(400, 100, 1000, 0.5, generator)
    steps = positions.diff(dim=1)
    assert (positions[:, 0] == 0).all() and (steps >= 1).all()
    plain = (steps == 1).all(1)
    assert 100 < plain.sum() < 300
    assert 990 < positions.amax() < 1000


@pytest.mark.parametrize("max_length", [100, 101])
def test_positions_in_a_context_without_room_do_not_leap_far(max_length: int) -> None:
    positions = gapped_positions(20, 100, max_length, 1.0, torch.Generator().manual_seed(0))
    assert positions.amax() < max_length and (positions.diff(dim=1) >= 1).all()
