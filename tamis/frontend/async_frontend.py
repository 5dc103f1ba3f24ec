"""What the HTTP server talks to: messages and text in, a stream of text deltas out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tamis.engine.client import EngineClient
from tamis.engine.messages import EngineInfo
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError
from tamis.frontend.merge import merge_streams
from tamis.frontend.sequence import Sequence as TextSequence
from tamis.frontend.sequence import TextDelta, build_sequences
from tamis.frontend.template import ChatTemplate
from tamis.frontend.tokenizer import Tokenizer

# Shorter texts are encoded in well under a millisecond: a thread would cost more than it frees.
OFF_LOOP_CHARS = 4096


class AsyncFrontend:
    """Tokenizer, chat template and an engine client, on one asyncio loop.

    Attributes:
        client: the engine; its health, readiness and end are the caller's to watch.
        tokenizer: the model's vocabulary.
        template: the model's chat format.
        sampling_defaults: `SamplingParams` fields that the checkpoint recommends, for requests that do not set them.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        sampling_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.template = template
        self.sampling_defaults = dict(sampling_defaults or {})
        self._info: EngineInfo | None = None

    async def ready(self) -> EngineInfo:
        """Wait until the engine has loaded; raises what loading raised."""
        if self._info is None:
            self._info = await self.client.ready()
        return self._info

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Token ids of a chat, through the template.

        Args:
            messages: OpenAI messages, as plain dicts.
            tools: OpenAI tool definitions, as plain dicts.
            template_kwargs: variables of the template (`thinking_mode`, say); one it does not have is refused.
            add_generation_prompt: open the model's turn at the end.
            continue_final_message: leave the last message, which must be the assistant's, open for more text.

        Raises:
            InvalidRequestError: messages or variables that the template refuses.
            UnsupportedError: content other than text.
            ContextLengthError: for text that no tokenisation can fit into the model's context.
        """

        chars = _text_chars(messages, tools)
        await self._check_chars(chars, "messages")

        def encode() -> list[int]:
            pieces = self.template.render_pieces(
                messages,
                tools=tools,
                template_kwargs=template_kwargs,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            return self.tokenizer.encode_pieces(pieces)

        return encode() if chars <= OFF_LOOP_CHARS else await asyncio.to_thread(encode)

    async def encode_text(self, text: str) -> list[int]:
        """Token ids of a plain prompt, special tokens in it parsed.

        Raises:
            InvalidRequestError: for text that is not valid Unicode.
            ContextLengthError: for text that no tokenisation can fit into the model's context.
        """
        await self._check_chars(len(text), "prompt")
        if len(text) <= OFF_LOOP_CHARS:
            return self.tokenizer.encode(text, add_special_tokens=True)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=True)

    async def _check_chars(self, chars: int, param: str) -> None:
        """Refuse hopelessly long text before seconds go into its tokens."""
        longest = self.tokenizer.max_token_chars
        limit = (await self.ready()).max_model_len
        if longest is not None and chars > limit * longest:
            raise ContextLengthError(
                f"{param} holds {chars} characters, at least {-(-chars // longest)} tokens, but this model's context "
                f"is {limit} tokens.",
                param=param,
                hint="Shorten the text.",
            )

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[TextDelta]:
        """Stream the deltas of all `sampling.n` completions, as they come.

        Closing the generator early (use `contextlib.aclosing`; cancellation does it too) aborts every completion.

        Raises:
            InvalidRequestError, ContextLengthError: before anything is submitted (see `sequence.build_sequences`).
            OverloadedError, EngineDeadError: from the engine; when one completion fails the others are aborted.
        """
        sequences = build_sequences(
            prompt_token_ids,
            sampling,
            request_id=request_id,
            tokenizer=self.tokenizer,
            info=await self.ready(),
            priority=priority,
            cache_salt=cache_salt,
        )
        async with aclosing(merge_streams([self._stream(sequence) for sequence in sequences])) as deltas:
            async for delta in deltas:
                yield delta

    async def _stream(self, sequence: TextSequence) -> AsyncGenerator[TextDelta]:
        engine_deltas = self.client.generate(sequence.request)
        try:
            async for delta in engine_deltas:
                yield sequence.consume(delta)
                if sequence.finished:
                    return
        finally:
            # After a stop string the engine still runs: closing its iterator is what aborts it.
            await _close(engine_deltas)


async def _close(iterator: AsyncIterator[Any]) -> None:
    if isinstance(iterator, AsyncGenerator):
        await iterator.aclose()


def _text_chars(*values: Any) -> int:
    """Characters of all text in nested values."""
    total, pending = 0, list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
    return total
