"""Token ids to text while they are generated: whole characters only, in time linear in the output."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from tamis.engine.plan import TokenLogprobs
from tamis.frontend.tokenizer import Tokenizer


class Detokenizer:
    """Text of one sequence. The pieces joined equal `tokenizer.decode` of all its tokens.

    A byte-level vocabulary is decoded as bytes; half a character waits for its other bytes, and bytes that can never
    become one turn into U+FFFD at once. Other vocabularies go through the library's decoder.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream = (
            None if tokenizer.is_byte_level else tokenizer.new_decode_stream(skip_special_tokens=skip_special_tokens)
        )

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete, often empty."""
        if self._stream is not None:
            return "".join([self._stream.push(token_id) for token_id in token_ids])
        token_bytes = self._tokenizer.token_bytes
        return self._utf8.decode(b"".join([token_bytes(i) for i in token_ids if i not in self._skipped]))

    def finish(self) -> str:
        """What was held back, as U+FFFD where the output ended inside a character."""
        return self._stream.finish() if self._stream is not None else self._utf8.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token as the API shows it beside its log-probability.

    Attributes:
        token_id: its id.
        text: its bytes as text, U+FFFD for what is no character by itself.
        data: its bytes.
        logprob: natural logarithm.
    """

    token_id: int
    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The token chosen at one output position and the most likely ones there, best first."""

    chosen: TokenText
    top: tuple[TokenText, ...]


def position_logprobs(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> PositionLogprobs:
    """Give the engine's ids and numbers of one position their texts."""
    return PositionLogprobs(
        chosen=_token_text(tokenizer, token_id, logprobs.logprob),
        top=tuple(
            _token_text(tokenizer, top_id, logprob)
            for top_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        ),
    )


def _token_text(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenText:
    data = tokenizer.token_bytes(token_id)
    return TokenText(token_id, data.decode("utf-8", "replace"), data, logprob)
