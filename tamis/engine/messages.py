"""What crosses between whoever has text (frontend) and whoever has tokens (engine), in one process or two."""

from __future__ import annotations

from typing import Literal

import msgspec

from tamis import errors
from tamis.engine.plan import TokenLogprobs
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import TamisError

FinishReason = Literal["stop", "length", "abort", "error"]


class EngineRequest(msgspec.Struct, kw_only=True):
    """One sequence to generate (`sampling.n` has been expanded before).

    Attributes:
        request_id: unique among live requests.
        prompt_token_ids: at least one; every id is inside the vocabulary.
        sampling: how to sample; `stop` strings are the frontend's business and ignored here.
        eos_token_ids: end-of-turn tokens of the model.
        priority: lower runs first when the policy is "priority" (vLLM's meaning).
        cache_salt: prefix blocks are shared only between requests of equal salt.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: list[int] = []
    priority: int = 0
    cache_salt: str | None = None


class ErrorInfo(msgspec.Struct, kw_only=True):
    """A `TamisError` in transit: `ErrorInfo.of(error).to_error()` is an equal error.

    Attributes:
        kind: name of the class in `tamis.errors`.
        message, code, status, param, hint, retry_after_s: the error's own.
    """

    kind: str = "TamisError"
    message: str
    code: str
    status: int
    param: str | None = None
    hint: str | None = None
    retry_after_s: int | None = None

    @classmethod
    def of(cls, error: TamisError) -> ErrorInfo:
        """What is to be told of the error."""
        return cls(
            kind=type(error).__name__,
            message=error.message,
            code=error.code,
            status=error.status,
            param=error.param,
            hint=error.hint,
            retry_after_s=error.retry_after_s,
        )

    def to_error(self) -> TamisError:
        """The error again, of its own class (or `TamisError` when `tamis.errors` has no such class)."""
        error_class = getattr(errors, self.kind, TamisError)
        if not (isinstance(error_class, type) and issubclass(error_class, TamisError)):
            error_class = TamisError
        error: TamisError = error_class(self.message, param=self.param, hint=self.hint, code=self.code)
        error.status = self.status
        error.retry_after_s = self.retry_after_s
        return error


class RequestDelta(msgspec.Struct, kw_only=True):
    """News of one request. The last one, and only it, has a `finish_reason`.

    Attributes:
        request_id: the request.
        token_ids: tokens since the previous delta; a final EOS or stop token is included.
        logprobs: one entry a token, when asked for.
        finish_reason: "stop" (EOS or stop token), "length", "abort", "error"; None while running.
        stop_token_id: the token that stopped it, when one did.
        num_cached_tokens: prompt tokens that came from the prefix cache (at first admission).
        queued_s: seconds from arrival until first scheduled, on the first delta with tokens; else 0.
        error: set when `finish_reason` is "error".
    """

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    queued_s: float = 0.0
    error: ErrorInfo | None = None


class EngineInfo(msgspec.Struct, kw_only=True):
    """What the frontend must know of a loaded engine.

    Attributes:
        model: the folder or hub id that was loaded.
        vocab_size, max_model_len: limits for requests.
        num_blocks: blocks of the pool (the null block not counted).
        block_size: tokens a block, always 128.
        max_num_seqs, max_num_batched_tokens: scheduler limits.
        card: lines for the start-up card, name → value (dtype, device, kernels and why, row bytes …).
    """

    model: str
    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    card: dict[str, str] = {}


class EngineStats(msgspec.Struct, kw_only=True):
    """Gauges and counters at one moment; counters only grow.

    Attributes:
        num_running, num_waiting: requests.
        num_free_blocks, num_cached_blocks, num_used_blocks: of the pool; cached ones are free but still hold a prefix.
        num_leaked_blocks: blocks referenced by no live request; anything but 0 is a bug.
        prefix_queries_tokens, prefix_hits_tokens, preemptions, steps, prompt_tokens, generation_tokens: counters.
        step_s: seconds of the last step.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_used_blocks: int = 0
    num_leaked_blocks: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    step_s: float = 0.0
