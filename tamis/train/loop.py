"""The training loop of a phase: AdamW on fp32 weights, bf16 autocast on a GPU."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.models.m3 import M3ForCausalLM
from tamis.train.attention import TrainAttention
from tamis.train.moe import CountingRouter, WideExperts, prepare_for_training
from tamis.train.presets import Phase, Preset
from tamis.train.quantization import quantize_linears
from tamis.train.rows import Rows

_WARMUP_STEPS = 100
_LOG_STEPS = 20
_BALANCE_RATE = 2e-3
# So many query rows of a step teach the index branch, drawn by loss weight: sequences are many.
_SAMPLED_QUERIES = 1536
# 1 + w scales the norm's output: this start gives index scores the spread that a scale of head_dim^-0.5 would.
_INDEX_NORM_START = 128**-0.25 - 1.0


@dataclass
class TrainState:
    """What lives through the phases of one process.

    Attributes:
        step: optimiser steps done by `optimizer`.
    """

    model: M3ForCausalLM
    optimizer: torch.optim.Optimizer
    routers: list[CountingRouter]
    step: int = 0
    compiled: bool = field(default=False)


def initial_state(preset: Preset, device: torch.device, *, seed: int) -> TrainState:
    """A fresh model and its optimiser."""
    torch.manual_seed(seed)
    model = M3ForCausalLM(preset.config())
    depth = 2 * model.config.num_layers
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, _INDEX_NORM_START if ".index_" in name else 0.0)
        elif "o_proj" in name or "down_proj" in name:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 / math.sqrt(depth))
        else:
            nn.init.normal_(parameter, std=0.02 if "lm_head" in name else parameter.shape[-1] ** -0.5)
    nn.init.normal_(model.embed_tokens.weight, std=0.5)
    routers = prepare_for_training(model)
    model.to(device).train()
    matrices = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() == 1 or "embed" in n]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=preset.phases[0].learning_rate[0],
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )
    return TrainState(model, optimizer, routers)


def set_quantized(model: M3ForCausalLM) -> None:
    """From here on the forward rounds linears and experts as M3.1's checkpoint does; the weights stay fp32."""
    quantize_linears(model)
    for module in model.modules():
        if isinstance(module, WideExperts):
            module.quantized = True


def sequence_loss(
    model: M3ForCausalLM,
    tokens: Tensor,
    weights: Tensor,
    *,
    sampled_queries: int = 0,
    index_sees_all: bool = False,
    nvfp4_cache: bool = False,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss of rows.

    Args:
        tokens: [rows, length + 1] int64. weights: same shape, loss weight of each token as a target.
        sampled_queries: positions of each row that the index loss looks at, drawn by loss weight; 0 leaves it out.
        index_sees_all, nvfp4_cache: see `TrainAttention`.
        positions: [rows, length] int64, ascending in a row; 0, 1, 2, … when None.

    Returns:
        weighted mean cross-entropy in nats; mean index loss over the sparse layers (0 when left out).
    """
    rows, length = tokens.shape[0], tokens.shape[1] - 1
    queries = None
    if sampled_queries:
        queries = weights[:, 1:].float().clamp_min(0.01).multinomial(sampled_queries, replacement=True)
    attention = TrainAttention(
        model.config, rows, length, queries=queries, index_sees_all=index_sees_all, nvfp4_cache=nvfp4_cache
    )
    if positions is None:
        positions = torch.arange(length, device=tokens.device).expand(rows, -1)
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=tokens.is_cuda):
        hidden = model(tokens[:, :-1].flatten(), positions.flatten(), attention, model.config.max_position_embeddings)
        logits = model.compute_logits(hidden)
    share = weights[:, 1:].flatten().float()
    losses = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    index = torch.stack(attention.index_losses).mean() if attention.index_losses else losses.new_zeros(())
    return (losses * share).sum() / share.sum().clamp_min(1e-6), index


def gapped_positions(rows: int, length: int, max_length: int, share: float, generator: torch.Generator) -> Tensor:
    """Positions [rows, length] int64; a `share` of the rows leaps ahead at up to three places, within `max_length`.

    Text at both ends of a leap is as far apart as in a longer context, at the price of a short one.
    """
    positions = torch.arange(length).repeat(rows, 1)
    most = max_length - length
    for row in range(rows):
        if float(torch.rand((), generator=generator)) >= share:
            continue
        room = most * float(torch.rand((), generator=generator))
        leaps = room / 3 * 2 * torch.rand(3, generator=generator)
        # Shortened together where they would leave the context: clamped positions would be one and the same.
        leaps *= min(1.0, most / max(float(leaps.sum()), 1.0))
        for place, leap in zip(
            torch.randint(1, length, (3,), generator=generator).tolist(), leaps.tolist(), strict=True
        ):
            positions[row, place:] += int(leap)
    return positions


def train_phase(
    state: TrainState,
    preset: Preset,
    phase: Phase,
    batches: Iterator[Rows],
    log_path: Path,
    *,
    minutes: float,
    seed: int,
    compile_layers: bool = False,
    max_steps: int | None = None,
) -> dict[str, Any]:
    """Train one phase to the end of its schedule, or to `minutes`: the learning rate then falls faster.

    Writes one JSON object a logged step to `log_path`.

    Returns:
        {"steps", "tokens", "elapsed_s", "loss", "index_loss"}; the losses of the last logged steps.
    """
    model, device = state.model, next(state.model.parameters()).device
    model.rotary.lookup(torch.zeros(1, dtype=torch.long, device=device), preset.max_length)
    if phase.quantized:
        set_quantized(model)
    if compile_layers and not state.compiled:
        torch._dynamo.config.recompile_limit = 64
        for layer in model.layers:
            layer.compile(dynamic=False)
        state.compiled = True
    generator = torch.Generator().manual_seed(seed)
    sampled = max(16, _SAMPLED_QUERIES // phase.rows)
    seen = torch.zeros(2, device=device)
    seen_steps = step = tokens_done = 0
    entry: dict[str, Any] = {}
    started = last_log = time.monotonic()
    with open(log_path, "a", encoding="utf-8") as log:
        while True:
            elapsed_s = time.monotonic() - started
            progress = max(step / phase.steps, elapsed_s / (60 * minutes))
            if progress >= 1.0 or (max_steps is not None and step >= max_steps):
                break
            rate = phase.learning_rate[0] + progress * (phase.learning_rate[1] - phase.learning_rate[0])
            rate *= min((state.step + 1) / _WARMUP_STEPS, 1.0)
            for group in state.optimizer.param_groups:
                group["lr"] = rate
            tokens, weights = (torch.from_numpy(x).to(device, non_blocking=True) for x in _signed(next(batches)))
            positions = gapped_positions(len(tokens), phase.length, preset.max_length, phase.gaps, generator)
            loss, index = sequence_loss(
                model,
                tokens.long(),
                weights.float() / 100.0,
                sampled_queries=sampled,
                index_sees_all=phase.index_sees_all,
                nvfp4_cache=phase.quantized,
                positions=positions.to(device, non_blocking=True),
            )
            (loss + index).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            for router in state.routers:
                router.balance(_BALANCE_RATE * rate / preset.phases[0].learning_rate[0])
            state.step += 1
            step += 1
            seen += torch.stack([loss.detach(), index.detach()])
            seen_steps += 1
            tokens_done += weights[:, 1:].numel()
            if step % _LOG_STEPS == 0 or step == phase.steps:
                mean = (seen / seen_steps).tolist()
                now = time.monotonic()
                entry = {
                    "phase": phase.name,
                    "step": step,
                    "tokens": tokens_done,
                    "loss": round(mean[0], 4),
                    "index_loss": round(mean[1], 4),
                    "learning_rate": round(rate, 7),
                    "tokens_per_s": round(seen_steps * phase.rows * phase.length / (now - last_log)),
                    "elapsed_s": round(now - started, 1),
                }
                log.write(json.dumps(entry) + "\n")
                log.flush()
                if step % (10 * _LOG_STEPS) == 0 or step <= 2 * _LOG_STEPS:
                    print(json.dumps(entry), flush=True)
                if not math.isfinite(mean[0]):
                    raise FloatingPointError(f"the loss is {mean[0]} at step {step}")
                seen.zero_()
                seen_steps, last_log = 0, now
    report = {"steps": step, "tokens": tokens_done, "elapsed_s": round(time.monotonic() - started, 1)}
    return report | {key: entry[key] for key in ("loss", "index_loss") if key in entry}


def _signed(rows: Rows) -> Rows:
    # torch indexes no unsigned 16-bit tensor; no vocabulary here needs the sign bit.
    return rows[0].astype("int16"), rows[1]
