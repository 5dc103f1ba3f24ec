"""The training loop: AdamW on fp32 weights, bf16 autocast on a GPU, one schedule over all phases."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tamis.models.m3 import M3ForCausalLM
from tamis.train.attention import TrainAttention
from tamis.train.moe import CountingRouter, prepare_for_training
from tamis.train.presets import Phase, Preset

Rows = tuple[np.ndarray, np.ndarray]

_WARMUP_STEPS = 200
_LOG_STEPS = 50
_SAVE_STEPS = 2000
_BALANCE_RATE = 2e-3
# 16 query rows of each sequence teach the index branch; sequences are many.
_SAMPLED_QUERIES = 16
# 1 + w scales the norm's output: this start gives index scores the spread that a scale of head_dim^-0.5 would.
_INDEX_NORM_START = 128**-0.25 - 1.0


@dataclass
class TrainState:
    """What a checkpoint keeps."""

    model: M3ForCausalLM
    optimizer: torch.optim.Optimizer
    routers: list[CountingRouter]
    step: int = 0
    elapsed_s: float = 0.0

    def save(self, path: Path) -> None:
        """Write all of it, atomically."""
        values = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "elapsed_s": self.elapsed_s,
        }
        torch.save(values, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, path: Path) -> None:
        """Continue from `save`."""
        values = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(values["model"])
        self.optimizer.load_state_dict(values["optimizer"])
        self.step, self.elapsed_s = values["step"], values["elapsed_s"]


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
        lr=preset.learning_rate,
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )
    return TrainState(model, optimizer, routers)


def sequence_loss(
    model: M3ForCausalLM,
    tokens: Tensor,
    weights: Tensor,
    *,
    sampled_queries: int = 0,
    index_sees_all: bool = False,
) -> tuple[Tensor, Tensor]:
    """Loss of rows.

    Args:
        tokens: [rows, length + 1] int64. weights: same shape, loss weight of each token as a target.
        sampled_queries: positions of each row that the index loss looks at, drawn by loss weight; 0 leaves it out.
        index_sees_all: see `TrainAttention`.

    Returns:
        weighted mean cross-entropy in nats; mean index loss over the sparse layers (0 when left out).
    """
    rows, length = tokens.shape[0], tokens.shape[1] - 1
    queries = None
    if sampled_queries:
        queries = weights[:, 1:].float().clamp_min(0.01).multinomial(sampled_queries, replacement=True)
    attention = TrainAttention(model.config, rows, length, queries=queries, index_sees_all=index_sees_all)
    positions = torch.arange(length, device=tokens.device).repeat(rows)
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=tokens.is_cuda):
        hidden = model(tokens[:, :-1].flatten(), positions, attention, length)
        logits = model.compute_logits(hidden)
    share = weights[:, 1:].flatten().float()
    losses = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    index = torch.stack(attention.index_losses).mean() if attention.index_losses else losses.new_zeros(())
    return (losses * share).sum() / share.sum().clamp_min(1e-6), index


class RowSampler:
    """Endless shuffled rows of one phase, on the device."""

    def __init__(self, rows: Rows, phase: Phase, device: torch.device, *, seed: int):
        self.tokens = torch.from_numpy(rows[0].astype(np.int16)).to(device)
        self.weights = torch.from_numpy(rows[1]).to(device)
        self.phase = phase
        self.generator = torch.Generator().manual_seed(seed)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(tokens int64, weights float) of `phase.rows` rows."""
        count = len(self.tokens)
        while True:
            order = torch.randperm(count, generator=self.generator)
            if count < self.phase.rows:
                order = order.repeat(-(-self.phase.rows // count))
            order = order.to(self.tokens.device)
            for start in range(0, len(order) - self.phase.rows + 1, self.phase.rows):
                chosen = order[start : start + self.phase.rows]
                # int16 keeps rows small on the device; no vocabulary here needs the sign bit.
                yield self.tokens[chosen].long(), self.weights[chosen].float() / 100.0


def train(
    state: TrainState,
    preset: Preset,
    rows: list[Rows],
    folder: Path,
    *,
    limit_s: float,
    seed: int,
    compile_layers: bool = False,
    max_steps: int | None = None,
) -> None:
    """Train to the end of the schedule, or to `limit_s` seconds: the schedule is shortened to end by then.

    Writes `log.jsonl` (one object a logged step) and `state.pt` into `folder`.
    """
    model, device = state.model, next(state.model.parameters()).device
    model.rotary.lookup(torch.zeros(1, dtype=torch.long, device=device), preset.max_length)
    samplers = [
        RowSampler(phase_rows, phase, device, seed=seed + i).batches()
        for i, (phase_rows, phase) in enumerate(zip(rows, preset.phases, strict=True))
    ]
    if compile_layers:
        torch._dynamo.config.recompile_limit = 64
        for layer in model.layers:
            layer.compile(dynamic=False)
    started = time.monotonic() - state.elapsed_s
    seen = {"loss": torch.zeros((), device=device), "index": torch.zeros((), device=device)}
    seen_steps = seen_tokens = 0
    last_log = time.monotonic()
    with open(folder / "log.jsonl", "a", encoding="utf-8") as log:
        while True:
            state.elapsed_s = time.monotonic() - started
            progress = max(state.step / preset.steps, state.elapsed_s / limit_s)
            if progress >= 1.0 or (max_steps is not None and state.step >= max_steps):
                break
            number = next(i for i, phase in enumerate(preset.phases) if progress < phase.until)
            rate = _rate(state.step, progress)
            for group in state.optimizer.param_groups:
                group["lr"] = preset.learning_rate * rate
            tokens, weights = next(samplers[number])
            loss, index = sequence_loss(
                model,
                tokens,
                weights,
                sampled_queries=_SAMPLED_QUERIES,
                index_sees_all=preset.phases[number].index_sees_all,
            )
            (loss + index).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            for router in state.routers:
                router.balance(_BALANCE_RATE * rate)
            state.step += 1
            seen["loss"] += loss.detach()
            seen["index"] += index.detach()
            seen_steps += 1
            seen_tokens += tokens.numel()
            if state.step % _SAVE_STEPS == 0:
                state.save(folder / "state.pt")
            if state.step % _LOG_STEPS == 0 or state.step == preset.steps:
                entry: dict[str, Any] = {
                    "step": state.step,
                    "phase": number,
                    "loss": round(float(seen["loss"]) / seen_steps, 4),
                    "index_loss": round(float(seen["index"]) / seen_steps, 4),
                    "learning_rate": round(preset.learning_rate * rate, 6),
                    "tokens_per_s": round(seen_tokens / (time.monotonic() - last_log)),
                    "elapsed_s": round(time.monotonic() - started, 1),
                }
                log.write(json.dumps(entry) + "\n")
                log.flush()
                if state.step % (10 * _LOG_STEPS) == 0 or state.step <= 2 * _LOG_STEPS:
                    print(json.dumps(entry), flush=True)
                if not math.isfinite(entry["loss"]):
                    raise FloatingPointError(f"the loss is {entry['loss']} at step {state.step}")
                seen = {name: torch.zeros_like(value) for name, value in seen.items()}
                seen_steps = seen_tokens = 0
                last_log = time.monotonic()
    state.save(folder / "state.pt")


def _rate(step: int, progress: float) -> float:
    """Share of the peak learning rate: linear warm-up, flat, then a linear fall to 0 over the last 60%."""
    return min((step + 1) / _WARMUP_STEPS, 1.0) * min((1.0 - progress) / 0.6, 1.0)
