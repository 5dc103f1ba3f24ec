"""Perplexity of given text, by the engine's own model and cache: teacher-forced, in chunks, over the pool's rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tamis.config import BLOCK_TOKENS
from tamis.engine.plan import NewRequest, ScheduledRequest, StepPlan
from tamis.engine.sampling_params import SamplingParams
from tamis.runner.model_runner import ModelRunner

CHUNK_TOKENS = 1024


@dataclass(frozen=True)
class TextLoss:
    """Cross-entropy of some texts.

    Attributes:
        nats: summed over the predicted tokens.
        num_tokens: how many were predicted (each text's first is given).
    """

    nats: float
    num_tokens: int

    @property
    def nats_per_token(self) -> float:
        """Mean cross-entropy."""
        return self.nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """Its exponential."""
        return math.exp(self.nats_per_token)


def text_loss(runner: ModelRunner, texts: Sequence[Sequence[int]]) -> TextLoss:
    """Score texts of token ids, one after the other.

    Writes the pool's rows from block 1 on without asking an engine: before an engine has used the pool, or after it
    has been shut down. The runner holds no request afterwards.
    """
    nats, count = 0.0, 0
    for number, ids in enumerate(texts):
        for step, start in enumerate(range(0, len(ids), CHUNK_TOKENS)):
            length = min(CHUNK_TOKENS, len(ids) - start)
            request = ScheduledRequest(request_id=str(number), num_tokens=length, samples=False)
            new = [_request(str(number), ids)] if start == 0 else []
            logits = _logits(runner, StepPlan(step_id=step, new=new, scheduled=[request], finished=[]))
            targets = torch.tensor(ids[start + 1 : start + length + 1], dtype=torch.int64, device=logits.device)
            logits = logits[: len(targets)].float()
            nats += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum")) if len(targets) else 0.0
            count += len(targets)
        runner.reset()
    return TextLoss(nats, count)


def _request(request_id: str, ids: Sequence[int]) -> NewRequest:
    return NewRequest(
        request_id=request_id,
        token_ids=list(ids),
        num_prompt_tokens=len(ids),
        num_computed_tokens=0,
        block_ids=list(range(1, 1 + -(-len(ids) // BLOCK_TOKENS))),
        sampling=SamplingParams(temperature=0, seed=0),
    )


@torch.inference_mode()
def _logits(runner: ModelRunner, plan: StepPlan) -> torch.Tensor:
    """fp32 logits after every token of a plan with one request."""
    runner.states.apply(plan)
    inputs = runner.states.inputs(plan.scheduled, runner.device)
    every = torch.arange(plan.num_tokens, device=runner.device)
    return runner.forward(dataclasses.replace(inputs, sample_rows=every))
