"""An engine without a model: deterministic tokens, and a hand on every moment that a test wants to look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tamis.engine.client import Health
from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, RequestDelta
from tamis.engine.plan import TokenLogprobs
from tamis.errors import EngineDeadError, OverloadedError

NUM_BLOCKS = 100


class FakeEngine:
    """Answers every prompt with `answer` token by token, then EOS; `max_tokens`, `ignore_eos` and `logprobs` count.

    Attributes:
        gate: cleared, no further token leaves.
        free_tokens: tokens of each request that leave whatever the gate says.
        live: requests that run now.
        aborted: ids of requests whose iterator was closed early.
        overloaded: refuse new requests.
        broken: raise this instead of the next token.
    """

    def __init__(self, answer: list[int], *, max_model_len: int = 1024, vocab_size: int = 340):
        self.info = EngineInfo(
            model="/models/fake",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            num_blocks=NUM_BLOCKS,
            block_size=128,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            card={"dtype": "float32"},
        )
        self.answer = answer
        self.gate = asyncio.Event()
        self.gate.set()
        self.free_tokens = 0
        self.live: dict[str, EngineRequest] = {}
        self.seen: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.overloaded = False
        self.broken: Exception | None = None
        self.stage = Health(stage="ready", percent=100)
        self.loaded = asyncio.Event()
        self.load_error: Exception | None = None
        self.changed = asyncio.Condition()
        self._died = asyncio.Event()

    def health(self) -> Health:
        return self.stage

    async def ready(self) -> EngineInfo:
        if self.stage.stage != "ready":
            await self.loaded.wait()
        if self.load_error is not None:
            raise self.load_error
        return self.info

    async def generate(self, request: EngineRequest) -> AsyncGenerator[RequestDelta]:
        if self.overloaded:
            raise OverloadedError("1024 requests are waiting, the limit.", retry_after_s=3)
        self.seen.append(request)
        self.live[request.request_id] = request
        await self._notify()
        ended = False
        try:
            for index, token_id in enumerate(self._tokens(request)):
                if index >= self.free_tokens:
                    await self._pass_gate()
                if self.broken is not None:
                    raise self.broken
                delta = self._delta(request, index, token_id)
                ended = delta.finish_reason is not None
                if ended:
                    del self.live[request.request_id]
                yield delta
                if ended:
                    return
                await asyncio.sleep(0)
        finally:
            self.live.pop(request.request_id, None)
            if not ended:
                self.aborted.append(request.request_id)
            await self._notify()

    async def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.live), num_free_blocks=NUM_BLOCKS - len(self.live), num_used_blocks=len(self.live)
        )

    async def shutdown(self) -> None:
        self.die("shut down")

    def die(self, reason: str) -> None:
        """What a killed engine process looks like."""
        self.stage = Health(stage="dead", reason=reason)
        self._died.set()

    async def until_live(self, count: int) -> None:
        """Wait until exactly `count` requests run."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.live) == count)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _tokens(self, request: EngineRequest) -> list[int]:
        if request.sampling.ignore_eos:
            return [self.answer[i % len(self.answer)] for i in range(request.sampling.max_tokens or 1)]
        return [*self.answer, request.eos_token_ids[0]]

    async def _pass_gate(self) -> None:
        gate, died = asyncio.ensure_future(self.gate.wait()), asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({gate, died}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gate.cancel()
            died.cancel()
        if self._died.is_set():
            raise EngineDeadError(f"The engine process has ended: {self.stage.reason}.")

    def _delta(self, request: EngineRequest, index: int, token_id: int) -> RequestDelta:
        sampling = request.sampling
        is_eos = token_id in request.eos_token_ids and not sampling.ignore_eos
        is_last = index + 1 == sampling.max_tokens
        logprobs = None
        if sampling.logprobs is not None:
            top = [(token_id + i) % self.info.vocab_size for i in range(sampling.logprobs)]
            values = [-0.5 - i for i in range(sampling.logprobs)]
            logprobs = [TokenLogprobs(logprob=-0.5, top_token_ids=top, top_logprobs=values)]
        return RequestDelta(
            request_id=request.request_id,
            token_ids=[token_id],
            logprobs=logprobs,
            finish_reason="stop" if is_eos else "length" if is_last else None,
            stop_token_id=token_id if is_eos else None,
            num_cached_tokens=len(request.prompt_token_ids) // 128 * 128,
            queued_s=0.25 if index == 0 else 0.0,
        )
