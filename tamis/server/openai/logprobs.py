"""Log-probabilities in the chat form and in the older completions form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tamis.frontend.detokenize import PositionLogprobs, TokenText

# JSON has no infinity; this is what OpenAI sends for a token of probability 0.
LOWEST = -9999.0


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat answer: tokens with their bytes and alternatives, best first."""
    return {
        "content": [
            {**_token(position.chosen), "top_logprobs": [_token(token) for token in position.top]}
            for position in positions
        ],
        "refusal": None,
    }


def completion_logprobs(positions: Sequence[PositionLogprobs], offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion: four parallel lists.

    `offset` counts the characters before the first token; `text_offset` counts each token's own text, so a character
    that spans two tokens counts in both.
    """
    offsets = []
    for position in positions:
        offsets.append(offset)
        offset += len(position.chosen.text)
    return {
        "tokens": [position.chosen.text for position in positions],
        "token_logprobs": [_finite(position.chosen.logprob) for position in positions],
        "top_logprobs": [{token.text: _finite(token.logprob) for token in _with_chosen(p)} for p in positions],
        "text_offset": offsets,
    }


def _token(token: TokenText) -> dict[str, Any]:
    return {"token": token.text, "logprob": _finite(token.logprob), "bytes": list(token.data)}


def _with_chosen(position: PositionLogprobs) -> list[TokenText]:
    # Best first, so that of two tokens with equal text the likelier one is kept: dicts keep the last.
    return [position.chosen, *reversed(position.top)]


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
