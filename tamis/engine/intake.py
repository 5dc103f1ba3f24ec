"""What may enter the engine: limits are checked once, so that whatever is accepted can run to its end alone."""

from __future__ import annotations

import hashlib

import msgspec

from tamis.config import BLOCK_TOKENS, EngineConfig
from tamis.engine.messages import EngineInfo, EngineRequest
from tamis.engine.request import Request
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError, InvalidRequestError, UnsupportedError


class Intake:
    """Turns `EngineRequest`s into `Request`s.

    Args:
        config: policy and seed.
        info: limits of the loaded engine.
    """

    def __init__(self, config: EngineConfig, info: EngineInfo):
        self._by_priority = config.scheduling_policy == "priority"
        self._seed = config.seed
        self._vocab_size = info.vocab_size
        self._max_model_len = info.max_model_len
        self._pool_tokens = info.num_blocks * BLOCK_TOKENS
        self._num_accepted = 0

    def accept(self, request: EngineRequest, now_s: float) -> Request:
        """A waiting request, ranked and seeded by order of arrival.

        Raises:
            InvalidRequestError: empty prompt, or a token id outside the vocabulary.
            ContextLengthError: prompt plus output cannot fit the context or the pool.
            UnsupportedError: a priority under the policy "fcfs".
        """
        self._check_tokens(request.prompt_token_ids)
        max_tokens = self._max_tokens(len(request.prompt_token_ids), request.sampling)
        if request.priority and not self._by_priority:
            raise UnsupportedError(
                f"priority is {request.priority}, but this server runs requests in order of arrival.",
                param="priority",
                hint="Leave it out, or start the server with --scheduling-policy priority.",
            )
        arrival = self._num_accepted
        self._num_accepted += 1
        return Request(
            request,
            sampling=self._seeded(request.sampling, arrival),
            max_tokens=max_tokens,
            rank=(request.priority, arrival),
            arrival_s=now_s,
        )

    def _check_tokens(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise InvalidRequestError(
                "The prompt is empty, but at least 1 token is needed.", param="prompt", hint="Send some text."
            )
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(
                    f"Token id {token_id} is outside the vocabulary (0 to {self._vocab_size - 1}).", param="prompt"
                )

    def _max_tokens(self, num_prompt_tokens: int, sampling: SamplingParams) -> int:
        limit = min(self._max_model_len, self._pool_tokens)
        if self._max_model_len <= self._pool_tokens:
            name = f"the context of {limit} tokens (max_model_len)"
        else:
            name = f"the cache of {limit} tokens ({limit // BLOCK_TOKENS} blocks)"
        if num_prompt_tokens >= limit:
            raise ContextLengthError(
                f"The prompt has {num_prompt_tokens} tokens, which leaves no room for output in {name}.",
                param="prompt",
                hint=f"Shorten the prompt to at most {limit - 1} tokens.",
            )
        if sampling.max_tokens is None:
            return limit - num_prompt_tokens
        if num_prompt_tokens + sampling.max_tokens > limit:
            raise ContextLengthError(
                f"The prompt has {num_prompt_tokens} tokens and max_tokens is {sampling.max_tokens}, together over "
                f"{name}.",
                param="max_tokens",
                hint=f"Lower max_tokens to at most {limit - num_prompt_tokens} or shorten the prompt.",
            )
        return sampling.max_tokens

    def _seeded(self, sampling: SamplingParams, arrival: int) -> SamplingParams:
        if sampling.seed is not None:
            return sampling
        # Counter-based: the n-th request of a run gets the same seed whatever the ones before it were.
        digest = hashlib.sha256(f"{self._seed}/{arrival}".encode()).digest()
        return msgspec.structs.replace(sampling, seed=int.from_bytes(digest[:8], "little") >> 1)
