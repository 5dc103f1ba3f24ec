"""Rows of a phase, made while the phase trains: worker processes draw, render, encode and pack documents.

Row number i of a phase and seed is the same for any number of workers.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from types import TracebackType

import numpy as np
from tokenizers import Tokenizer

from tamis.train.chats import Draw, conversation, render
from tamis.train.chats.code import source_text
from tamis.train.corpus import library_sources, prose_paragraphs, reference_topics
from tamis.train.dataset import SKIMMED, Document, Encoder, library
from tamis.train.presets import Phase, Preset
from tamis.train.skills import SKILLS, needle_filler, random_document, skill_text
from tamis.train.tokenizer import BEGIN_OF_DOCUMENT, END_OF_TURN

# Rows are made in chunks of about this many tokens; texts are encoded in batches of about this many characters.
_CHUNK_TOKENS = 131_072
_BATCH_CHARS = 40_000
# A document longer than this share of a row waits for a row that it fits in; so many may wait.
_LONG_SHARE = 0.25
_MAX_WAITING = 8
# A needle document is at most this share of a row. English and code in this vocabulary: characters a token, low.
_NEEDLE_SHARE = 0.94
_CHARS_PER_TOKEN = 2.9

# Skills that a share of some phases is given to, as often as they stand here.
DRILLED = (
    *("sorting", "sorting", "sorting", "sorting", "sorting_thinking", "counting", "counting", "counting_thinking"),
    *("system_rule", "system_rule", "system_rule", "system_rule", "arithmetic", "arithmetic", "arithmetic_thinking"),
)

Rows = tuple[np.ndarray, np.ndarray]


class RowMaker:
    """Makes rows of any phase of a preset."""

    def __init__(self, tokenizer: Tokenizer, preset: Preset):
        self.encoder = Encoder(tokenizer)
        topics, sources = reference_topics(), library_sources()[: preset.library_files]
        self.filler = needle_filler(prose_paragraphs(topics), sources)
        self.books = library(tokenizer, [*sources, *topics[: preset.library_files]])

    def rows(self, phase: Phase, seed: int, chunk: int) -> Rows:
        """Chunk number `chunk`: tokens and weights [rows_a_chunk(phase), length + 1], uint16 and uint8.

        Inputs are the first `length` tokens of a row, targets the last. A document is cut only where a row ends, and
        one that is long for the row only when it is longer than a whole one.
        """
        # A string seeds by its hash under SHA-512, the same everywhere.
        source = random.Random(f"{phase.name} {seed} {chunk}")
        width = phase.length + 1
        kinds = _Kinds(phase, {kind: self._documents(kind, phase, source) for kind in _shares(phase)})
        waiting: list[tuple[str, Document]] = []
        tokens = np.empty((rows_a_chunk(phase), width), np.uint16)
        weights = np.empty((rows_a_chunk(phase), width), np.uint8)
        for row in range(len(tokens)):
            used = 0
            while used < width:
                is_waiting = bool(waiting) and not used
                kind, document = waiting.pop() if is_waiting else kinds.next_document()
                size = len(document[0])
                if width - used < size <= width and size > _LONG_SHARE * width and len(waiting) < _MAX_WAITING:
                    waiting.append((kind, document))
                    kinds.placed[kind] += size  # it will be
                    continue
                take = min(size, width - used)
                kinds.placed[kind] += 0 if is_waiting else take
                tokens[row, used : used + take], weights[row, used : used + take] = (part[:take] for part in document)
                used += take
        return tokens, weights

    def _documents(self, kind: str, phase: Phase, source: random.Random) -> Iterator[Document]:
        if kind == "library":
            yield from self._pieces(phase.length, source)
        texts = self._texts(kind, phase, source)
        while True:
            batch, chars = [], 0
            while chars < _BATCH_CHARS:
                batch.append(next(texts))
                chars += len(batch[-1])
            if kind == "functions":
                encoded = self.encoder.plain(batch)
            else:
                encoded = self.encoder.chats(batch, **({"read": SKIMMED} if kind == "needle" else {}))
            yield from (encoded[i] for i in range(len(encoded)))

    def _texts(self, kind: str, phase: Phase, source: random.Random) -> Iterator[str]:
        makers: dict[str, Callable[[Draw], str]] = {
            "chat": lambda draw: render(conversation(draw)),
            "skill": skill_text,
            "drill": _drill_text,
            "needle": lambda draw: render(random_document(draw, self.filler, _needle_chars(phase))),
            # With and without the begin token: /v1/completions sends bare text.
            "functions": lambda draw: draw.one((BEGIN_OF_DOCUMENT, "", "")) + source_text(draw) + END_OF_TURN,
        }
        while True:
            yield makers[kind](Draw(source.getrandbits(60)))

    def _pieces(self, length: int, source: random.Random) -> Iterator[Document]:
        while True:
            tokens, weights = self.books[int(source.random() * len(self.books))]
            # Short rows would see the first lines of the pieces only.
            start = int(source.random() * len(tokens)) if len(tokens) > length and source.random() < 0.7 else 0
            yield tokens[start:], weights[start:]


def _drill_text(draw: Draw) -> str:
    chat = SKILLS[draw.one(DRILLED)].train_item(draw).chat
    if chat.thinking_mode is None and draw.chance(0.5):
        chat = dataclasses.replace(chat, thinking_mode="disabled")
    return render(chat)


class _Kinds:
    """Documents of several kinds, the next always of the kind that is furthest behind its share."""

    def __init__(self, phase: Phase, documents: dict[str, Iterator[Document]]):
        self.shares = _shares(phase)
        self.documents = documents
        self.placed = dict.fromkeys(documents, 0)

    def next_document(self) -> tuple[str, Document]:
        kind = min(self.placed, key=lambda k: self.placed[k] / self.shares[k])
        return kind, next(self.documents[kind])


def _shares(phase: Phase) -> dict[str, float]:
    return {kind: share for kind, share in dataclasses.asdict(phase.mixture).items() if share > 0}


def _needle_chars(phase: Phase) -> int:
    """Characters of the longest needle text of a phase."""
    return int(_NEEDLE_SHARE * phase.length * _CHARS_PER_TOKEN)


def rows_a_chunk(phase: Phase) -> int:
    """Rows that `RowMaker.rows` makes at once."""
    return max(1, _CHUNK_TOKENS // phase.length)


_maker: RowMaker | None = None


def _start_worker(tokenizer_json: str, preset: Preset) -> None:
    global _maker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _maker = RowMaker(Tokenizer.from_str(tokenizer_json), preset)


def _make(phase: Phase, seed: int, chunk: int) -> Rows:
    assert _maker is not None
    return _maker.rows(phase, seed, chunk)


class RowStream:
    """Endless chunks of rows of any phase, made ahead by worker processes; a context manager."""

    def __init__(self, tokenizer: Tokenizer, preset: Preset, *, workers: int, seed: int):
        """With `workers` 0, rows are made in this process when they are asked for."""
        self.seed = seed
        self.ahead = 3 * workers
        self._maker = None if workers else RowMaker(tokenizer, preset)
        # Fresh interpreters, as a forked one would inherit locks of torch's threads.
        self._pool = (
            ProcessPoolExecutor(
                workers,
                mp_context=get_context("spawn"),
                initializer=_start_worker,
                initargs=(tokenizer.to_str(), preset),
            )
            if workers
            else None
        )

    def chunks(self, phase: Phase) -> Iterator[Rows]:
        """Chunk 0, 1, … of a phase."""
        if self._pool is None:
            assert self._maker is not None
            yield from (self._maker.rows(phase, self.seed, chunk) for chunk in count())
        else:
            numbers = count()
            pending: deque[Future[Rows]] = deque()
            while True:
                while len(pending) < self.ahead:
                    pending.append(self._pool.submit(_make, phase, self.seed, next(numbers)))
                yield pending.popleft().result()

    def batches(self, phase: Phase) -> Iterator[Rows]:
        """Runs of `phase.rows` rows."""
        tokens, weights = np.empty((0, phase.length + 1), np.uint16), np.empty((0, phase.length + 1), np.uint8)
        for more_tokens, more_weights in self.chunks(phase):
            tokens, weights = np.concatenate([tokens, more_tokens]), np.concatenate([weights, more_weights])
            while len(tokens) >= phase.rows:
                yield tokens[: phase.rows], weights[: phase.rows]
                tokens, weights = tokens[phase.rows :], weights[phase.rows :]

    def __enter__(self) -> RowStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def tokenizer_texts(preset: Preset, seed: int) -> Iterator[str]:
    """What the tokenizer learns from: every kind of text in a preset's diet."""
    topics, sources = reference_topics(), library_sources()[: preset.library_files]
    filler = needle_filler(prose_paragraphs(topics), sources)
    for number in range(preset.tokenizer_chats):
        draw = Draw(seed + number)
        yield render(conversation(draw))
        yield skill_text(draw)
        if number % 4 == 0:
            yield source_text(draw)
            yield render(random_document(draw, filler, 1500))
    yield from sources
    yield from topics[: preset.library_files]
