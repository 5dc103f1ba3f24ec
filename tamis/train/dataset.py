"""Documents become rows of tokens with a weight each; made by worker processes, the same for any number of them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from tokenizers import Tokenizer

from tamis.train.chats import Draw, conversation, needle_chat, render
from tamis.train.chats.code import source_text
from tamis.train.tokenizer import BEGIN_OF_DOCUMENT, END_OF_TURN

# Loss weights, in hundredths: what the model is to say, and what it only reads.
SPOKEN = 100
READ = 10
_CHATS_A_SHARD = 1000
_PIECE_CHARS = 12_000


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

    @staticmethod
    def join(parts: Sequence[Documents]) -> Documents:
        """All documents of `parts`, in order."""
        starts = np.cumsum([0, *(len(p.tokens) for p in parts[:-1])])
        return Documents(
            np.concatenate([p.tokens for p in parts]),
            np.concatenate([p.weights for p in parts]),
            np.concatenate([p.ends + start for p, start in zip(parts, starts, strict=True)]),
        )

    def share(self, part: float) -> Documents:
        """The first `part` of the documents."""
        count = max(1, int(part * len(self.ends)))
        end = int(self.ends[count - 1])
        return Documents(self.tokens[:end], self.weights[:end], self.ends[:count])

    def repeat(self, times: int) -> Documents:
        """Every document `times` times."""
        return Documents.join([self] * times)


class Encoder:
    """Texts to `Documents` with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._ids = {text: tokenizer.token_to_id(text) for text in ("]~b]", END_OF_TURN, "</mm:think>", "<mm:think>")}
        self._assistant = tokenizer.encode("ai\n").ids

    def plain(self, texts: Iterable[str]) -> Documents:
        """Text to be continued from anywhere: every token counts."""
        return self._encode(list(texts), chat=False)

    def chats(self, texts: Iterable[str]) -> Documents:
        """Rendered conversations: assistant turns count, the rest lightly.

        A `</mm:think>` that opens an answer counts nothing: the template writes it, not the model.
        """
        return self._encode(list(texts), chat=True)

    def _encode(self, texts: list[str], *, chat: bool) -> Documents:
        encoded = [np.array(e.ids, dtype=np.uint16) for e in self.tokenizer.encode_batch_fast(texts)]
        weights = [self._chat_weights(ids) if chat else np.full(len(ids), SPOKEN, np.uint8) for ids in encoded]
        return Documents(np.concatenate(encoded), np.concatenate(weights), np.cumsum([len(ids) for ids in encoded]))

    def _chat_weights(self, ids: np.ndarray) -> np.ndarray:
        weights = np.full(len(ids), READ, np.uint8)
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


@dataclass(frozen=True)
class Shard:
    """A piece of work: which generator, from which seed, how many documents."""

    kind: str
    seed: int
    count: int
    longest_chars: int = 0


def _make_shard(shard: Shard, tokenizer_json: str, filler: Sequence[str]) -> Documents:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Encoder(Tokenizer.from_str(tokenizer_json))
    draws = [Draw(shard.seed + i) for i in range(shard.count)]
    if shard.kind == "chat":
        return encoder.chats(render(conversation(draw)) for draw in draws)
    if shard.kind == "needle":
        return encoder.chats(render(needle_chat(draw, filler, shard.longest_chars)) for draw in draws)
    # With and without the begin token: /v1/completions sends bare text.
    return encoder.plain(draw.one((BEGIN_OF_DOCUMENT, "", "")) + source_text(draw) + END_OF_TURN for draw in draws)


def worker_pool(workers: int) -> Executor:
    """Processes for `generated`: fresh interpreters, as a forked one would inherit locks of torch's threads."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def generated(
    tokenizer: Tokenizer,
    kind: str,
    count: int,
    *,
    seed: int,
    filler: Sequence[str] = (),
    longest_chars: int = 0,
    pool: Executor | None = None,
) -> Documents:
    """`count` documents of `kind` (chat, needle or functions), document i from seed `seed` + i."""
    shards = [
        Shard(kind, seed + start, min(_CHATS_A_SHARD, count - start), longest_chars)
        for start in range(0, count, _CHATS_A_SHARD)
    ]
    text = tokenizer.to_str()
    run = map if pool is None else pool.map
    return Documents.join(list(run(_make_shard, shards, [text] * len(shards), [filler] * len(shards))))


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


def pack(documents: Documents, length: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle documents into rows; each row begins with a document, the last one of a row is cut off.

    Returns:
        tokens [R, length + 1] uint16 and weights [R, length + 1] uint8: inputs are the first `length`, targets the
        last.
    """
    starts = np.concatenate([[0], documents.ends[:-1]])
    order = np.arange(len(starts))
    random.Random(seed).shuffle(order)  # type: ignore[arg-type]
    width = length + 1
    tokens, weights = [], []
    row_t, row_w, used = [], [], 0
    for index in order:
        start, end = starts[index], documents.ends[index]
        take = min(end - start, width - used)
        row_t.append(documents.tokens[start : start + take])
        row_w.append(documents.weights[start : start + take])
        used += take
        if used == width:
            tokens.append(np.concatenate(row_t))
            weights.append(np.concatenate(row_w))
            row_t, row_w, used = [], [], 0
    if not tokens:
        raise ValueError(f"{len(documents.tokens)} tokens do not fill one row of {width}")
    return np.stack(tokens), np.stack(weights)
