"""One user request becomes n engine requests, and their deltas become text."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tamis.engine.messages import EngineInfo, EngineRequest, RequestDelta
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError, InvalidRequestError
from tamis.frontend.detokenize import Detokenizer, PositionLogprobs, position_logprobs
from tamis.frontend.stop_strings import StopStrings
from tamis.frontend.tokenizer import Tokenizer

SEED_MASK = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """News of one completion. Its last delta, and only that, has a `finish_reason`.

    Attributes:
        index: which of the n completions.
        text: what may be shown now; empty while a character or a possible stop string is incomplete.
        token_ids: tokens since the previous delta, a final EOS or stop token included. Text follows tokens with a
            delay, so the two do not match delta by delta, but they do in sum.
        logprobs: one entry for each of `token_ids` when asked for, else None.
        finish_reason: "stop", "length" or "abort"; an error is raised instead.
        stop_reason: the stop string or stop token id that ended it; None for EOS and other ends.
        num_prompt_tokens, num_cached_tokens: tokens of the prompt, and how many the prefix cache held.
        queued_s: seconds the request waited, on the first delta with tokens; else 0.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: Literal["stop", "length", "abort"] | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    queued_s: float = 0.0


class Sequence:
    """One completion: the engine request and the text state of its output."""

    def __init__(self, index: int, request: EngineRequest, tokenizer: Tokenizer, stops: list[str]) -> None:
        self.index = index
        self.request = request
        self.finished = False
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=request.sampling.skip_special_tokens)
        self._stops = StopStrings(stops)
        self._num_cached_tokens = 0

    def consume(self, delta: RequestDelta) -> TextDelta:
        """Turn the engine's delta into text.

        When a stop string ends the completion the returned delta has a `finish_reason` although `delta` had none:
        the caller then aborts the engine request. Tokens after the one that completed the stop string are dropped.

        Raises:
            TamisError: what ended the request in the engine.
        """
        if delta.error is not None:
            self.finished = True
            raise delta.error.to_error()
        self._num_cached_tokens = max(self._num_cached_tokens, delta.num_cached_tokens)
        text, num_tokens, stop = self._text_of(delta)
        finish_reason = "stop" if stop is not None else delta.finish_reason
        stop_reason: int | str | None = stop
        if finish_reason is not None:
            self.finished = True
            if stop is None and delta.stop_token_id not in self.request.eos_token_ids:
                stop_reason = delta.stop_token_id
        assert finish_reason != "error", "an engine error comes with its ErrorInfo"
        logprobs = None
        if delta.logprobs is not None:
            logprobs = [
                position_logprobs(self._tokenizer, token_id, entry)
                for token_id, entry in zip(delta.token_ids[:num_tokens], delta.logprobs[:num_tokens], strict=True)
            ]
        return TextDelta(
            index=self.index,
            text=text,
            token_ids=delta.token_ids[:num_tokens],
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=self._num_cached_tokens,
            queued_s=delta.queued_s,
        )

    def _text_of(self, delta: RequestDelta) -> tuple[str, int, str | None]:
        """Text to show, how many of the delta's tokens count, and the stop string that ended it."""
        shown: list[str] = []
        for count, token_id in enumerate(delta.token_ids, start=1):
            if token_id == delta.stop_token_id and count == len(delta.token_ids):
                break  # the token that stopped it is counted, not shown
            text, stop = self._stops.push(self._detokenizer.push([token_id]))
            shown.append(text)
            if stop is not None:
                return "".join(shown), count, stop
        if delta.finish_reason is not None:
            text, stop = self._stops.push(self._detokenizer.finish())
            shown.append(text)
            if stop is not None:
                return "".join(shown), len(delta.token_ids), stop
            shown.append(self._stops.finish())
        return "".join(shown), len(delta.token_ids), None


def build_sequences(
    prompt_token_ids: list[int],
    sampling: SamplingParams,
    *,
    request_id: str,
    tokenizer: Tokenizer,
    info: EngineInfo,
    priority: int = 0,
    cache_salt: str | None = None,
) -> list[Sequence]:
    """Check a request against the model's limits and expand it into `sampling.n` sequences.

    Child i has the request id `{request_id}-{i}` (the id itself when n is 1) and, when there is a seed, seed + i.

    Raises:
        InvalidRequestError: empty prompt, a token id (in the prompt, logit_bias, stop_token_ids or barred_token_ids)
            that the model does not have, or a bias on a token that is never sampled.
        ContextLengthError: the prompt, or prompt and max_tokens, are longer than the model's context.
    """
    check_prompt(prompt_token_ids, sampling, info)
    for token_id in tokenizer.forbidden_ids:
        if token_id in sampling.logit_bias:
            raise InvalidRequestError(
                f"logit_bias has the key {token_id}, a media placeholder, which this server never samples.",
                param="logit_bias",
                hint="Leave it out.",
            )
    barred = sorted({*sampling.barred_token_ids, *tokenizer.forbidden_ids})
    base = msgspec.structs.replace(sampling, n=1, stop=[], barred_token_ids=barred)
    return [
        Sequence(
            index,
            EngineRequest(
                request_id=request_id if sampling.n == 1 else f"{request_id}-{index}",
                prompt_token_ids=prompt_token_ids,
                sampling=_with_seed(base, index),
                eos_token_ids=tokenizer.eos_token_ids,
                priority=priority,
                cache_salt=cache_salt,
            ),
            tokenizer,
            sampling.stop,
        )
        for index in range(sampling.n)
    ]


def check_prompt(prompt_token_ids: SequenceOf[int], sampling: SamplingParams, info: EngineInfo) -> None:
    """Refuse what the engine could not run; see `build_sequences` for the errors."""
    length, limit = len(prompt_token_ids), info.max_model_len
    if not length:
        raise InvalidRequestError("The prompt has 0 tokens, but needs at least 1.", param="prompt")
    if length >= limit:
        raise ContextLengthError(
            f"The prompt has {length} tokens, but this model's context is {limit} tokens, prompt and output together.",
            param="prompt",
            hint=f"Shorten the prompt to at most {limit - 1} tokens.",
        )
    if sampling.max_tokens is not None and length + sampling.max_tokens > limit:
        raise ContextLengthError(
            f"The prompt has {length} tokens and max_tokens is {sampling.max_tokens}, {length + sampling.max_tokens} "
            f"together, but this model's context is {limit} tokens.",
            param="max_tokens",
            hint=f"Lower max_tokens to at most {limit - length} or shorten the prompt.",
        )
    if not 0 <= min(prompt_token_ids) <= max(prompt_token_ids) < info.vocab_size:
        at = next(i for i, token_id in enumerate(prompt_token_ids) if not 0 <= token_id < info.vocab_size)
        _refuse_token_id(f"prompt[{at}]", prompt_token_ids[at], info.vocab_size, "prompt")
    for token_id in sampling.logit_bias:
        if not 0 <= token_id < info.vocab_size:
            _refuse_token_id("logit_bias key", token_id, info.vocab_size, "logit_bias")
    for name in ("stop_token_ids", "barred_token_ids"):
        for token_id in getattr(sampling, name):
            if not 0 <= token_id < info.vocab_size:
                _refuse_token_id(f"{name} entry", token_id, info.vocab_size, name)


def _with_seed(sampling: SamplingParams, index: int) -> SamplingParams:
    if sampling.seed is None or index == 0:
        return sampling
    # Stays a 64-bit integer for every seed a request may bring.
    seed = sampling.seed + index
    return msgspec.structs.replace(sampling, seed=seed if seed <= SEED_MASK else seed - 2**64)


def _refuse_token_id(what: str, token_id: int, vocab_size: int, param: str) -> None:
    raise InvalidRequestError(
        f"{what} is token id {token_id}, but must be from 0 to {vocab_size - 1}.",
        param=param,
        hint="Token ids come from this model's own tokenizer.",
    )
