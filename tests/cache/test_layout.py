"""The row: sizes from the facts, alignment, disjoint lanes, and the pool's views over them."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path

import pytest
import torch

from tamis.cache.layout import row_layout
from tamis.cache.pool import RowPool
from tamis.kernels.lane import FORMATS
from tamis.kernels.row_insert import insert

M31 = {"sparse_layers": (True,) * 60, "head_dim": 128, "index_head_dim": 128}


@pytest.mark.parametrize(
    "format, kv_bytes, index_bytes",
    [("bfloat16", 122_880, 15_360), ("fp8", 61_440, 7_680), ("nvfp4", 34_560, 4_320)],
)
def test_bytes_a_token_are_those_of_the_facts(format, kv_bytes, index_bytes):
    layout = row_layout(**M31, num_kv_heads=4, kv_format=format, index_format=format)
    assert layout.row_bytes == 128 * (kv_bytes + index_bytes)


def test_the_m31_row_at_tp4_with_its_drafter_is_the_seeds_row():
    layout = row_layout(**M31, num_kv_heads=1, kv_format="nvfp4", index_format="nvfp4", num_draft_layers=5)
    assert layout.row_bytes == 1_822_720


@pytest.mark.parametrize("kv_format, index_format", list(itertools.product(FORMATS, FORMATS)))
def test_lanes_are_aligned_and_disjoint(kv_format, index_format):
    layout = row_layout(
        sparse_layers=(False, True, True),
        num_kv_heads=3,
        head_dim=16,
        index_head_dim=48,
        kv_format=kv_format,
        index_format=index_format,
    )
    spans = [*layout.k, *layout.v, *layout.index.values()]
    pieces = [(s.codes_offset, s.codes_bytes) for s in spans]
    pieces += [(s.scales_offset, s.scales_bytes) for s in spans if s.scales_offset is not None]
    pieces.sort()
    assert all(start % 16 == 0 for start, _ in pieces)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(pieces))
    assert pieces[-1][0] + pieces[-1][1] <= layout.row_bytes
    assert set(layout.index) == {1, 2}


@pytest.mark.parametrize("kv_format, index_format", [("nvfp4", "bfloat16"), ("float32", "nvfp4"), ("fp8", "fp8")])
def test_a_write_to_a_lane_changes_its_bytes_only(kv_format, index_format):
    layout = row_layout(
        sparse_layers=(True, True),
        num_kv_heads=2,
        head_dim=32,
        index_head_dim=32,
        kv_format=kv_format,
        index_format=index_format,
    )
    pool = RowPool(layout, 3, torch.device("cpu"))
    x = torch.randn(1, 2, 32) + 3.0
    insert(pool.kv_lanes(1)[0], x, torch.tensor([2 * 128 + 5]))
    touched = pool.rows.nonzero()
    span = layout.k[1]
    end = span.codes_offset + span.codes_bytes if span.scales_offset is None else span.scales_offset + span.scales_bytes
    assert (touched[:, 0] == 2).all()
    assert ((touched[:, 1] >= span.codes_offset) & (touched[:, 1] < end)).all()
    read = pool.kv_lanes(1)[0].read(2)[:, 5]
    torch.testing.assert_close(read, x[0], rtol=0.2, atol=0.3)


def test_a_row_takes_memory_when_it_is_written_and_not_before():
    layout = row_layout(
        sparse_layers=(True,) * 8,
        num_kv_heads=4,
        head_dim=128,
        index_head_dim=128,
        kv_format="float32",
        index_format="float32",
    )
    page_bytes = resource.getpagesize()

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page_bytes

    before = resident_bytes()
    pool = RowPool(layout, 200, torch.device("cpu"))
    pool_bytes = pool.rows.numel()
    assert pool_bytes > 900e6
    assert resident_bytes() - before < 0.05 * pool_bytes
    pool.rows[7].fill_(1)
    assert 0.5 * layout.row_bytes < resident_bytes() - before < 0.05 * pool_bytes
    assert int(pool.rows[8].max()) == 0
