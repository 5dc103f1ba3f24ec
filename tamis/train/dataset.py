"""Texts become documents: tokens with a loss weight each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from tamis.train.tokenizer import BEGIN_OF_DOCUMENT, END_OF_TURN

# Loss weights, in hundredths: what the model is to say, what it only reads, and what it reads at great length.
SPOKEN = 100
READ = 10
SKIMMED = 2
_PIECE_CHARS = 12_000


Document = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Documents:
    """Encoded documents, end to end.

    Attributes:
        tokens: [N] uint16.
        weights: [N] uint8, loss weight of each token as a target, in hundredths.
        ends: [D] int64, end of each document.
    """

    tokens: np.ndarray
    weights: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Document:
        """(tokens, weights) of one document."""
        start = int(self.ends[index - 1]) if index else 0
        return self.tokens[start : self.ends[index]], self.weights[start : self.ends[index]]


class Encoder:
    """Texts to `Documents` with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._ids = {text: tokenizer.token_to_id(text) for text in ("]~b]", END_OF_TURN, "</mm:think>", "<mm:think>")}
        self._assistant = tokenizer.encode("ai\n").ids

    def plain(self, texts: Iterable[str]) -> Documents:
        """Text to be continued from anywhere: every token counts."""
        return self._encode(list(texts), read=None)

    def chats(self, texts: Iterable[str], *, read: int = READ) -> Documents:
        """Rendered conversations: assistant turns count, the rest lightly (`read`).

        A `</mm:think>` that opens an answer counts nothing: the template writes it, not the model.
        """
        return self._encode(list(texts), read=read)

    def _encode(self, texts: list[str], *, read: int | None) -> Documents:
        encoded = [np.array(e.ids, dtype=np.uint16) for e in self.tokenizer.encode_batch_fast(texts)]
        weights = [
            np.full(len(ids), SPOKEN, np.uint8) if read is None else self._chat_weights(ids, read) for ids in encoded
        ]
        return Documents(np.concatenate(encoded), np.concatenate(weights), np.cumsum([len(ids) for ids in encoded]))

    def _chat_weights(self, ids: np.ndarray, read: int) -> np.ndarray:
        weights = np.full(len(ids), read, np.uint8)
        header = len(self._assistant)
        stops = np.flatnonzero(ids == self._ids[END_OF_TURN])
        for turn in np.flatnonzero(ids == self._ids["]~b]"]):
            start = turn + 1 + header
            if start >= len(ids) or ids[turn + 1 : start].tolist() != self._assistant:
                continue
            later = stops[stops >= start]
            end = int(later[0]) + 1 if len(later) else len(ids)
            weights[start:end] = SPOKEN
            if ids[start] in (self._ids["</mm:think>"], self._ids["<mm:think>"]):
                weights[start] = 0
        return weights


def library(tokenizer: Tokenizer, texts: Sequence[str]) -> Documents:
    """Whole files, cut at line ends into pieces of some thousand tokens."""
    pieces = []
    for text in texts:
        lines, size = [], 0
        for line in text.splitlines(keepends=True):
            lines.append(line)
            size += len(line)
            if size > _PIECE_CHARS:
                pieces.append("".join(lines))
                lines, size = [], 0
        pieces.append("".join(lines) + END_OF_TURN)
    return Encoder(tokenizer).plain(BEGIN_OF_DOCUMENT + piece for piece in pieces)
