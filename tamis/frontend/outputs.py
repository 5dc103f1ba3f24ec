"""What `LLM.generate` returns, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tamis.frontend.detokenize import PositionLogprobs
from tamis.frontend.sequence import TextDelta


@dataclass(slots=True)
class Logprob:
    """One token's natural-log probability at one position; `rank` counts from 1, None when it is not among the top."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One completion.

    Attributes:
        index: which of the n.
        text, token_ids: the whole output; a final EOS or stop token is in token_ids only.
        cumulative_logprob, logprobs: when asked for: their sum, and for each token a mapping of the chosen and the
            most likely ids.
        finish_reason: "stop", "length" or "abort".
        stop_reason: the stop string or stop token id that ended it; None for EOS and other ends.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: Literal["stop", "length", "abort"] | None = None
    stop_reason: int | str | None = None

    def add(self, delta: TextDelta) -> None:
        """Append a delta of this completion."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + [_by_id(position) for position in delta.logprobs]
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + sum(p.chosen.logprob for p in delta.logprobs)


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its completions.

    Attributes:
        request_id: unique within one `LLM`.
        prompt: its text; None when it came as token ids.
        prompt_token_ids: what the model read.
        outputs: n completions, by index.
        finished: always true for what `generate` returns.
        num_cached_tokens: prompt tokens that the prefix cache held, of the completion that held most.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0

    def add(self, delta: TextDelta) -> None:
        """Append a delta of one of the completions."""
        self.outputs[delta.index].add(delta)
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        self.finished = all(output.finish_reason is not None for output in self.outputs)


def _by_id(position: PositionLogprobs) -> dict[int, Logprob]:
    entries = {
        token.token_id: Logprob(token.logprob, rank, token.text) for rank, token in enumerate(position.top, start=1)
    }
    chosen = position.chosen
    return {chosen.token_id: Logprob(chosen.logprob, None, chosen.text)} | entries
