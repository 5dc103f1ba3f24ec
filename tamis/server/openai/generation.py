"""One API request on its way through the engine: its prompts' deltas in one stream, its usage, its metrics."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from tamis.engine.sampling_params import SamplingParams
from tamis.errors import UnavailableError
from tamis.frontend.detokenize import PositionLogprobs
from tamis.frontend.merge import merge_streams
from tamis.frontend.sequence import TextDelta
from tamis.server.metrics import Metrics, RequestTimer
from tamis.server.service import Served


@dataclass
class Choice:
    """One answer, collected."""

    text: str = ""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: str = "stop"
    stop_reason: int | str | None = None


class Generation:
    """`sampling.n` answers to each of `prompts`; choice `p * n + i` is answer i to prompt p, as OpenAI numbers them.

    Attributes:
        id: of the answer, such as "chatcmpl-5f…"; also names the request in the engine.
        created: seconds since 1970.
        num_generated_tokens, num_cached_tokens: so far.
    """

    def __init__(
        self,
        served: Served,
        metrics: Metrics,
        prompts: list[list[int]],
        sampling: SamplingParams,
        *,
        id_prefix: str,
        priority: int,
        cache_salt: str | None,
    ):
        self.id = id_prefix + uuid.uuid4().hex
        self.created = int(time.time())
        self.prompts = prompts
        self.sampling = sampling
        self.num_prompt_tokens = sum(len(prompt) for prompt in prompts)
        self.num_generated_tokens = 0
        self._cached_tokens = [0] * len(prompts)
        self._served = served
        self._metrics = metrics
        self._priority = priority
        self._cache_salt = cache_salt

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache held, each prompt counted once."""
        return sum(self._cached_tokens)

    async def deltas(self) -> AsyncGenerator[TextDelta]:
        """All choices' deltas as they come, `index` being the choice. Closing the generator aborts the request.

        Raises:
            TamisError: from the engine; UnavailableError when the engine ended a choice on its own.
        """
        timer = RequestTimer(self._metrics, self._served.name, self.num_prompt_tokens)
        streams = [self._of_prompt(index) for index in range(len(self.prompts))]
        async with aclosing(merge_streams(streams)) as deltas:
            async for delta in deltas:
                self.num_generated_tokens += len(delta.token_ids)
                if delta.token_ids:
                    timer.tokens(delta.index, len(delta.token_ids), delta.queued_s)
                if delta.finish_reason is not None:
                    timer.finish(delta.index, delta.finish_reason)
                if delta.finish_reason == "abort":
                    raise UnavailableError(
                        "The server ended the request before its answer was complete.",
                        code="aborted",
                        hint="Send it again.",
                    )
                yield delta

    async def choices(self) -> list[Choice]:
        """Run to the end and return every choice."""
        choices = [Choice() for _ in range(len(self.prompts) * self.sampling.n)]
        texts: list[list[str]] = [[] for _ in choices]
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                choice = choices[delta.index]
                texts[delta.index].append(delta.text)
                choice.logprobs += delta.logprobs or []
                if delta.finish_reason is not None:
                    choice.finish_reason = delta.finish_reason
                    choice.stop_reason = delta.stop_reason
        for choice, pieces in zip(choices, texts, strict=True):
            choice.text = "".join(pieces)
        return choices

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object, as of now."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_generated_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }

    async def _of_prompt(self, prompt: int) -> AsyncGenerator[TextDelta]:
        stream = self._served.frontend.generate(
            self.prompts[prompt],
            self.sampling,
            request_id=self.id if len(self.prompts) == 1 else f"{self.id}-{prompt}",
            priority=self._priority,
            # Without one prefixes are shared with everybody.
            cache_salt=self._cache_salt,
        )
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                self._cached_tokens[prompt] = max(self._cached_tokens[prompt], delta.num_cached_tokens)
                yield dataclasses.replace(delta, index=prompt * self.sampling.n + delta.index)
