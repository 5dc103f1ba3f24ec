"""Greedy continuation of a batch of prompts with the training forward: no cache, for scores only."""

from __future__ import annotations

import torch

from tamis.models.m3 import M3ForCausalLM
from tamis.train.attention import TrainAttention


@torch.no_grad()
def generate(model: M3ForCausalLM, prompts: list[list[int]], *, max_tokens: int, stop_id: int) -> list[list[int]]:
    """New ids of each prompt, without the stop token. Padding stands after the end, where causality hides it."""
    device = next(model.parameters()).device
    longest = max(map(len, prompts)) + max_tokens
    length = -(-longest // 128) * 128
    ids = torch.full((len(prompts), length), stop_id, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    ends = torch.tensor([len(p) for p in prompts], device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    positions = torch.arange(length, device=device).repeat(len(prompts))
    row_index = torch.arange(len(prompts), device=device)
    for _ in range(max_tokens):
        attention = TrainAttention(model.config, len(prompts), length)
        hidden = model(ids.flatten(), positions, attention, length).unflatten(0, ids.shape)
        chosen = model.compute_logits(hidden[row_index, ends - 1]).argmax(-1)
        done |= chosen == stop_id
        ids[row_index, ends] = torch.where(done, stop_id, chosen)
        ends += (~done).long()
        if bool(done.all()):
            break
    return [
        ids[row, len(prompt) : end].tolist()
        for row, (prompt, end) in enumerate(zip(prompts, ends.tolist(), strict=True))
    ]
