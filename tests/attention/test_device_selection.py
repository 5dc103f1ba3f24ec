"""How a step is cut into pieces whose scores fit into the scratch memory."""

from __future__ import annotations

import pytest

from tamis.attention import device_selection
from tamis.attention.device_selection import Piece, padded, pieces
from tamis.attention.plan import Segment


def segments(*lengths_and_contexts: tuple[int, int]) -> list[Segment]:
    start, out = 0, []
    for length, context in lengths_and_contexts:
        out.append(Segment(start, length, context))
        start += length
    return out


def test_requests_with_few_tokens_go_together_and_long_ones_alone():
    step = segments((1, 900), (8, 4000), (0, 5), (300, 300), (16, 777), (17, 20_000))
    assert pieces(step, 4, 160) == [
        Piece(slice(0, 9), slice(0, 3), 8, 160),
        Piece(slice(9, 309), slice(3, 4), 0, 3),
        Piece(slice(309, 325), slice(4, 5), 16, 160),
        Piece(slice(325, 342), slice(5, 6), 0, 157),
    ]


def test_a_step_of_nothing_but_padding_is_not_launched():
    assert pieces(segments((0, 1), (0, 1)), 4, 8) == []


@pytest.mark.parametrize("heads", [1, 4, 64])
def test_every_token_is_in_one_piece_that_fits(monkeypatch, heads):
    scratch = 1 << 20
    monkeypatch.setattr(device_selection, "_SCRATCH_BYTES", scratch)
    step = segments(*((n % 7, 60_000) for n in range(200)), (5000, 70_000), (1, 1), (3, 4))
    found = pieces(step, heads, 600)
    assert [t for p in found for t in range(p.tokens.start, p.tokens.stop)] == list(range(step[-1].start + 3))
    for piece in found:
        assert (piece.tokens.stop - piece.tokens.start) * heads * 4 * padded(piece.num_blocks) <= scratch
        assert piece.max_tokens * heads <= 64
