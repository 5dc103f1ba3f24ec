"""A quick look at a model between phases, with the training forward: no cache, no generation.

An answer is right when every one of its tokens is the model's first choice given the tokens before, which is when
greedy generation would give it. The scores that count are `tamis bench eval`'s, through the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from tamis.models.m3 import M3ForCausalLM
from tamis.train.attention import TrainAttention
from tamis.train.chats import Draw, render
from tamis.train.dataset import SPOKEN, Document, Encoder
from tamis.train.skills import SKILLS, random_document

# Rows are padded to one of few lengths, so that little is compiled.
_ROW_TOKENS = (1024, 2048, 8192, 32_768, 65_536, 131_072)
_BATCH_TOKENS = 65_536
_SEED = 1 << 61


@torch.no_grad()
def share_right(model: M3ForCausalLM, documents: Sequence[Document], *, nvfp4_cache: bool) -> float:
    """Share of the answers (runs of full loss weight) in `documents` that the model gives exactly."""
    device = next(model.parameters()).device
    right = total = 0
    for length in sorted({_row_length(document) for document in documents}):
        rows = [document for document in documents if _row_length(document) == length]
        size = max(1, _BATCH_TOKENS // length)
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            ids = torch.zeros(len(batch), length, dtype=torch.long)
            for row, (tokens, _) in zip(ids, batch, strict=True):
                row[: len(tokens)] = torch.from_numpy(tokens.astype("int64"))
            attention = TrainAttention(model.config, len(batch), length, nvfp4_cache=nvfp4_cache)
            positions = torch.arange(length, device=device).repeat(len(batch))
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                hidden = model(ids.to(device).flatten(), positions, attention, length).unflatten(0, ids.shape)
                for row, (_, weights) in enumerate(batch):
                    targets = torch.from_numpy((weights == SPOKEN).nonzero()[0])
                    chosen = model.compute_logits(hidden[row, targets.to(device) - 1]).argmax(-1).cpu()
                    hits = (chosen == ids[row, targets]).tolist()
                    for answer in _runs(targets.tolist(), hits):
                        right += all(answer)
                        total += 1
    return right / max(total, 1)


def _row_length(document: Document) -> int:
    return next(length for length in _ROW_TOKENS if length >= len(document[0]))


def _runs(places: list[int], values: list[bool]) -> list[list[bool]]:
    """Values of neighbouring places together."""
    runs: list[list[bool]] = []
    for i, (place, value) in enumerate(zip(places, values, strict=True)):
        if i and place == places[i - 1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def skill_documents(tokenizer: Tokenizer, name: str, count: int) -> list[Document]:
    """Held-out items of a skill."""
    encoder = Encoder(tokenizer)
    texts = [render(SKILLS[name].test_item(Draw(i)).chat) for i in range(count)]
    documents = encoder.chats(texts, read=0)
    return [documents[i] for i in range(len(documents)) if len(documents[i][0]) <= _ROW_TOKENS[1]]


def needle_documents(tokenizer: Tokenizer, filler: Sequence[str], length: int, count: int) -> list[Document]:
    """Texts of at most `length` tokens, nearly full, with questions on facts of keys that training may have seen."""
    encoder = Encoder(tokenizer)
    found: list[Document] = []
    chars = int(3.6 * length)
    seed = 0
    while len(found) < count:
        documents = encoder.chats([render(random_document(Draw(_SEED + seed), filler, chars))], read=0)
        if len(documents[0][0]) > length:
            chars = int(0.97 * chars)
        elif len(documents[0][0]) > 0.8 * length:
            found.append(documents[0])
        seed += 1
    return found


def quick_scores(
    model: M3ForCausalLM,
    tokenizer: Tokenizer,
    filler: Sequence[str],
    *,
    items: int,
    lengths: Sequence[int],
    nvfp4_cache: bool,
) -> dict[str, float]:
    """Share right of each skill, and of needles in texts of `lengths` tokens."""
    model.eval()
    scores = {}
    for name in SKILLS:
        scores[name] = share_right(model, skill_documents(tokenizer, name, items), nvfp4_cache=nvfp4_cache)
    for length in lengths:
        texts = needle_documents(tokenizer, filler, length, max(1, items // 20))
        scores[f"needle {length}"] = share_right(model, texts, nvfp4_cache=nvfp4_cache)
    return {name: round(share, 4) for name, share in scores.items()}
