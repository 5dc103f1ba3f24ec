"""Selection of a whole step on a GPU: few launches, and nothing that waits for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.attention.plan import Segment, StepTables
from tamis.kernels import index_score, topk_blocks
from tamis.kernels.lane import Lane

_SCRATCH_BYTES = 256 << 20
_ROW_ALIGNMENT = 16  # scores, so that rows are loaded 16 bytes at a time


@dataclass(frozen=True)
class Piece:
    """Tokens whose scores are held together.

    Attributes:
        tokens: of the step.
        requests: whose tokens these are, whole; one request if it has more tokens than a decode launch takes.
        max_tokens: the most tokens of one of them, or 0: the tokens are a part of a long segment.
        num_blocks: a bound on the blocks that they see.
    """

    tokens: slice
    requests: slice
    max_tokens: int
    num_blocks: int


def pieces(segments: list[Segment], heads: int, width: int) -> list[Piece]:
    """Cut a step: neighbouring requests with few tokens together, long segments alone, each within the scratch memory.

    Args:
        segments: in step order.
        heads: of the index.
        width: of the block tables, in blocks; what a captured decode step has to allow for.
    """
    few = index_score.MAX_DECODE_ROWS // heads
    out: list[Piece] = []
    at = 0
    while at < len(segments):
        segment = segments[at]
        stop = segment.start + segment.length
        if segment.length > few:
            num_blocks = -(-segment.context_tokens // 128)
            step = max(1, _SCRATCH_BYTES // (4 * heads * padded(num_blocks)))
            for start in range(segment.start, stop, step):
                out.append(Piece(slice(start, min(start + step, stop)), slice(at, at + 1), 0, num_blocks))
            at += 1
            continue
        first, longest, most = at, 0, max(few, _SCRATCH_BYTES // (4 * heads * padded(width)))
        while at < len(segments) and segments[at].length <= few:
            end = segments[at].start + segments[at].length
            if end - segment.start > most:
                break
            stop, longest = end, max(longest, segments[at].length)
            at += 1
        if stop > segment.start:
            out.append(Piece(slice(segment.start, stop), slice(first, at), longest, width))
    return out


def padded(num_blocks: int) -> int:
    """Scores from row to row."""
    return -(-num_blocks // _ROW_ALIGNMENT) * _ROW_ALIGNMENT


def request_starts(tables: StepTables) -> Tensor:
    """[R + 1] int64: the step's index of each request's first token, and the number of tokens; made on the device."""
    request = torch.arange(len(tables.block_tables) + 1, device=tables.positions.device)
    return torch.searchsorted(tables.request_of_token, request)


def select(q: Tensor, lane: Lane, tables: StepTables, starts: Tensor, *, k: int, init: int, local: int) -> Tensor:
    """Score and select.

    Args:
        q: [T, heads, 128] bf16 index queries.
        lane: index lane that `index_score.on_device` accepts with q.
        starts: of `request_starts`.
        k, init, local: see `topk_blocks.select_blocks`.

    Returns:
        [T, heads, k] int64. Scratch: at most 256 MB of scores, or one request's.
    """
    q = q.contiguous()
    heads = q.shape[1]
    parts = []
    for piece in pieces(tables.segments, heads, tables.block_tables.shape[1]):
        part, positions = q[piece.tokens], tables.positions[piece.tokens]
        scores = torch.empty((part.shape[0], heads, padded(piece.num_blocks)), dtype=torch.float32, device=q.device)[
            ..., : piece.num_blocks
        ]
        # Whoever sees no more than k blocks reads them all.
        if piece.num_blocks > k:
            block_tables = tables.block_tables[piece.requests]
            if piece.max_tokens:
                index_score.decode_scores(
                    part,
                    lane,
                    block_tables,
                    starts[piece.requests.start : piece.requests.stop + 1],
                    positions,
                    scores,
                    first_token=piece.tokens.start,
                    max_tokens=piece.max_tokens,
                )
            else:
                index_score.prefill_scores(part, lane, block_tables[0, : piece.num_blocks], positions, scores)
        parts.append(topk_blocks.select_blocks(scores, positions, k=k, init=init, local=local))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
