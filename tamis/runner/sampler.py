"""Next tokens for a batch in one call, each a function of its own request and position only.

Order: logit bias, penalties, tokens barred before `min_tokens` or always; then greedy, or temperature, min_p,
top_k, top_p and one uniform number a token, drawn from (seed, position) by a counter-based hash.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tamis.engine.plan import SampledToken, TokenLogprobs
from tamis.runner.inputs import RequestState


def sample(logits: Tensor, states: list[RequestState]) -> list[SampledToken]:
    """Sample one token a row.

    Args:
        logits: [N, vocab_size] fp32, changed in place.
        states: the rows' requests; `sampling.seed` is set.

    Returns:
        N tokens, with log probabilities of the unchanged logits where asked for.
    """
    raw = torch.log_softmax(logits, dim=-1) if any(s.sampling.logprobs is not None for s in states) else None
    for row, state in zip(logits, states, strict=True):
        _adjust(row, state)
    tokens = logits.argmax(dim=-1)
    drawn = [i for i, s in enumerate(states) if s.sampling.temperature > 0]
    if drawn:
        tokens[drawn] = _draw(logits[drawn], [states[i] for i in drawn])
    ids = tokens.tolist()
    if raw is None:
        return [SampledToken(token_id=t) for t in ids]
    return [
        SampledToken(token_id=t, logprobs=_logprobs(raw[i], t, s.sampling.logprobs))
        for i, (t, s) in enumerate(zip(ids, states, strict=True))
    ]


def _adjust(row: Tensor, state: RequestState) -> None:
    """Bias, penalties and barred tokens of one row [vocab_size], in place."""
    params = state.sampling
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
    if params.repetition_penalty != 1.0:
        seen = torch.tensor([*(state.prompt_tokens | state.output_counts.keys())], device=row.device)
        value = row[seen]
        row[seen] = torch.where(value > 0, value / params.repetition_penalty, value * params.repetition_penalty)
    if state.output_counts and (params.frequency_penalty or params.presence_penalty):
        ids = torch.tensor([*state.output_counts], device=row.device)
        counts = torch.tensor([*state.output_counts.values()], device=row.device)
        row[ids] -= params.frequency_penalty * counts + params.presence_penalty
    if state.num_output_tokens < params.min_tokens and state.stop_token_ids:
        # Finite: a request may bar every token, and a row of infinities has no probabilities.
        row[torch.tensor(state.stop_token_ids, device=row.device)] = torch.finfo(row.dtype).min
    if params.barred_token_ids:
        row[params.barred_token_ids] = -torch.inf


def _draw(logits: Tensor, states: list[RequestState]) -> Tensor:
    """[N, vocab_size] adjusted logits → [N] int64 drawn tokens."""
    device = logits.device

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None]

    temperature = column([s.sampling.temperature for s in states]).float()
    # However close to 0 a temperature is, the best token's quotient stays 0, so that one request cannot make its
    # neighbours' step fail.
    shifted = (logits - logits.amax(-1, keepdim=True)) / temperature.clamp(min=torch.finfo(torch.float32).tiny)
    ordered, ids = torch.sort(shifted, dim=-1, descending=True, stable=True)
    probs = torch.softmax(ordered, dim=-1).double()
    rank = torch.arange(logits.shape[-1], device=device)
    top_k = column([s.sampling.top_k if s.sampling.top_k > 0 else logits.shape[-1] for s in states])
    min_p = column([s.sampling.min_p for s in states])
    keep = (rank < top_k) & (probs >= min_p * probs[:, :1])
    probs = probs * keep
    probs = probs / probs.sum(-1, keepdim=True)
    before = probs.cumsum(-1) - probs
    probs = probs * (before < column([s.sampling.top_p for s in states]))
    cumulative = probs.cumsum(-1)
    uniform = column(_uniforms([s.sampling.seed or 0 for s in states], [len(s.token_ids) for s in states]))
    choice = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    # A uniform that rounds up to the whole mass would fall past the last token that has any.
    choice = torch.minimum(choice, (probs > 0).sum(-1, keepdim=True) - 1)
    return ids.gather(1, choice)[:, 0]


def _uniforms(seeds: list[int], positions: list[int]) -> list[float]:
    """One number in [0, 1) a (seed, position): two rounds of the splitmix64 finaliser."""
    with np.errstate(over="ignore"):
        x = np.array(seeds, dtype=np.int64).astype(np.uint64)
        for counter in (np.array(positions, dtype=np.uint64), np.uint64(0)):
            x = x + np.uint64(0x9E3779B97F4A7C15) * (counter + np.uint64(1))
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return [float(v) for v in (x >> np.uint64(11)).astype(np.float64) * 2.0**-53]


def _logprobs(row: Tensor, token: int, count: int | None) -> TokenLogprobs | None:
    if count is None:
        return None
    if count == 0:
        return TokenLogprobs(logprob=float(row[token]))
    values, ids = torch.topk(row, min(count, row.shape[0]))
    return TokenLogprobs(logprob=float(row[token]), top_token_ids=ids.tolist(), top_logprobs=values.tolist())
