"""The native index scores and top-k: against the references, bit by bit across batches, threads and paths, refusals."""

from __future__ import annotations

import pytest
import torch

from tamis.kernels import cpu_extension, registry
from tamis.kernels.index_score import block_scores, native, variant
from tamis.kernels.index_score import reference as score_reference
from tamis.kernels.lane import Lane
from tamis.kernels.topk_blocks import cpu as topk_torch
from tamis.kernels.topk_blocks import native as topk_native
from tamis.kernels.topk_blocks import reference as topk_reference
from tests.kernels.test_attention_kernels import filled_lanes, last_positions

EXTENSION = cpu_extension.load()
if EXTENSION.module is None:
    pytest.skip(EXTENSION.reason, allow_module_level=True)

PATHS = [path for path, usable in EXTENSION.build["paths"].items() if usable]
LANES = [
    ("float32", "exact"),
    ("bfloat16", "exact"),
    ("fp8", "exact"),
    ("nvfp4", "exact"),
    ("nvfp4", "e4m3"),
]
LANE_IDS = ["float32", "bfloat16", "fp8", "nvfp4-exact", "nvfp4-e4m3"]


def case(format: str, contract: str, context: int, queries: int, heads: int, dim: int = 32):
    """The last queries of a context: (q, lane, table, positions). Every slot past the context reads as NaN."""
    lane, _, table, generator = filled_lanes(format, context, 1, dim, seed=context, contract=contract)
    positions = last_positions(context, queries)
    return torch.randn(len(positions), heads, dim, generator=generator), lane, table, positions


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal infinities and NaNs; dots within fp32 rounding of sums of up to 256 products."""
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("format, contract", LANES, ids=LANE_IDS)
@pytest.mark.parametrize("context", [1, 63, 127, 128, 129, 300])
@pytest.mark.parametrize("queries, heads", [(1, 1), (7, 1), (1, 4), (7, 3), (2, 16)])
def test_scores_match_the_reference(format, contract, context, queries, heads, path):
    q, lane, table, positions = case(format, contract, context, queries, heads)

    got = native.block_scores(q, lane, table, positions, path)

    assert_near(got, score_reference.block_scores(q, lane, table, positions))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("format, contract", LANES, ids=LANE_IDS)
@pytest.mark.parametrize("dim", [16, 48, 128, 256])
def test_scores_match_the_reference_in_every_dim(format, contract, dim, path):
    q, lane, table, positions = case(format, contract, 200, 5, 2, dim)

    got = native.block_scores(q, lane, table, positions, path)

    assert_near(got, score_reference.block_scores(q, lane, table, positions))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("format, contract", LANES, ids=LANE_IDS)
def test_every_key_byte_is_read_as_torch_reads_it(format, contract, path):
    """Unit queries pick single values out of keys of random bytes, NaN and infinities among them."""
    generator = torch.Generator().manual_seed(3)
    lane = filled_lanes(format, 128, 1, 32, seed=0, contract=contract)[0]
    for part in (lane.codes, lane.scales):
        if part is not None:
            raw = part.view(torch.uint8)
            raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=generator))
    lane.codes[0, 0].view(torch.uint8).view(-1)[:256] = torch.arange(256, dtype=torch.uint8)
    dims = torch.eye(32)[:, None]  # one token a dim
    keys = lane.read(torch.tensor(0), 0)[:1]  # the one key that position 0 sees

    got = native.block_scores(dims, lane, torch.tensor([0]), torch.zeros(32, dtype=torch.int64), path)[:, 0, 0]

    finite = keys.isfinite().all()
    want = keys[0] if finite else torch.full((32,), torch.nan)
    plain = want.isfinite() & got.isfinite()
    assert torch.equal(got[plain], want[plain])
    assert torch.equal(got.isnan(), (dims[:, 0] @ keys.T)[:, 0].isnan())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", [0, 7, 15, 16, 100, 127])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7])
def test_a_visible_nan_is_the_score_and_a_later_one_is_not_seen(key, rows, path):
    q, lane, table, _ = case("float32", "exact", 128, 1, 1)
    lane.codes[table[0], 0, key, 5] = torch.nan
    q = torch.randn(rows, 1, 32)

    sees = native.block_scores(q, lane, table, torch.full((rows,), key), path)
    whole = native.block_scores(q, lane, table, torch.full((rows,), 127), path)

    assert sees.isnan().all() and whole.isnan().all()
    if key:
        assert native.block_scores(q, lane, table, torch.full((rows,), key - 1), path).isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("format, contract", LANES, ids=LANE_IDS)
def test_scores_have_the_same_bits_alone_in_chunks_and_in_any_row_block(format, contract, path, two_threads):
    context, queries = 2600, 210
    q, lane, table, positions = case(format, contract, context, queries, 2, 64)
    whole = native.block_scores(q, lane, table, positions, path)

    torch.set_num_threads(1)
    assert torch.equal(native.block_scores(q, lane, table, positions, path), whole)
    for size in (1, 2, 3, 50):
        for start in range(0, queries, max(size, 7)):
            tokens = slice(start, start + size)
            part = native.block_scores(q[tokens], lane, table, positions[tokens], path)
            assert torch.equal(part, whole[tokens, :, : part.shape[-1]]), (size, start)


@pytest.mark.skipif(len(PATHS) < 2, reason="this CPU or build has one path")
@pytest.mark.parametrize("format, contract", LANES, ids=LANE_IDS)
def test_paths_differ_by_rounding_only(format, contract):
    args = case(format, contract, 1000, 70, 3, 128)
    assert_near(native.block_scores(*args, "scalar"), native.block_scores(*args, "avx2"))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("format, contract", LANES, ids=LANE_IDS)
def test_lanes_that_are_views_of_longer_rows(format, contract, path):
    q, lane, table, positions = case(format, contract, 300, 3, 2)

    def inside_rows(dense: torch.Tensor) -> torch.Tensor:
        raw = dense.view(torch.uint8)
        size = raw[0].numel()
        rows = torch.full((raw.shape[0], size + 48), 0x7F, dtype=torch.uint8)
        rows[:, 16 : 16 + size] = raw.reshape(raw.shape[0], size)
        return rows[:, 16 : 16 + size].view(dense.dtype).unflatten(-1, dense.shape[1:])

    view = Lane(format, inside_rows(lane.codes), None if lane.scales is None else inside_rows(lane.scales), contract)

    assert torch.equal(
        native.block_scores(q, view, table, positions, path), native.block_scores(q, lane, table, positions, path)
    )


def test_bad_scoring_arguments_are_refused_by_name_and_number():
    q, lane, table, positions = case("nvfp4", "exact", 300, 2, 1)
    shifted = Lane("nvfp4", lane.codes.transpose(2, 3).contiguous().transpose(2, 3), lane.scales)
    for args, says in [
        ((q, lane, table[:2], positions), "reach into block 3"),
        ((q, lane, torch.tensor([0, 1, 6]), positions), r"block_table\[2\] is 6, but the pool has 6"),
        ((q, lane, torch.tensor([0, -1, 2]), positions), r"block_table\[1\] is -1"),
        ((q[..., :24], lane, table, positions), "dim is 24"),
        ((q[..., :16], lane, table, positions), r"must be \[blocks, 128, 8\]"),
        ((q, shifted, table, positions), "dense within a block"),
        ((q, lane, table, positions[:1]), "positions are"),
        ((q, Lane("fp4", lane.codes), table, positions), "format is 'fp4'"),
        ((q, lane, table, positions, "sse9"), "path is 'sse9'"),
    ]:
        with pytest.raises(ValueError, match=says):
            native.block_scores(*args)


def test_the_registry_names_what_is_served():
    for format, contract in LANES:
        asked = variant(format, contract, torch.float32, 100, 64, "cpu")
        assert registry.select("index_score", "cpu", asked).name == "native"
    assert registry.select("index_score", "cpu", variant("fp8", "", torch.float32, 1, 24, "cpu")).name == "torch"
    q, lane, table, positions = case("float32", "exact", 200, 3, 2, dim=24)
    assert_near(block_scores(q, lane, table, positions), score_reference.block_scores(q, lane, table, positions))


def tied_scores(tokens: int, heads: int, num_blocks: int, seed: int) -> torch.Tensor:
    """Few values, so many ties; −0, NaN, infinities and −1e30 among them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, torch.nan, torch.inf, -torch.inf, -1e30, -2e30])
    return values[torch.randint(0, len(values), (tokens, heads, num_blocks), generator=generator)]


@pytest.mark.parametrize("k", [1, 2, 3, 16, 32, 50])
@pytest.mark.parametrize("init, local", [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (5, 40)])
@pytest.mark.parametrize("num_blocks", [1, 2, 15, 16, 17, 40, 300])
def test_selection_is_that_of_torch_with_ties_and_nan(k, init, local, num_blocks, two_threads):
    scores = tied_scores(9, 3, num_blocks, seed=k * 1000 + num_blocks)
    positions = torch.randint(0, num_blocks * 128, (9,), generator=torch.Generator().manual_seed(k))
    positions[0], positions[1] = num_blocks * 128 - 1, 0

    got = topk_native.select_blocks(scores, positions, k=k, init=init, local=local)

    assert torch.equal(got, topk_torch.select_blocks(scores, positions, k=k, init=init, local=local))
    if init + local <= k:
        largest = torch.finfo(torch.float32).max
        want = topk_reference.select_blocks(scores.clamp(-largest, largest), positions, k=k, init=init, local=local)
        assert torch.equal(got, want)


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "equal", "nan"])
def test_selection_among_16384_blocks(order):
    num_blocks, k = 16_384, 16
    ascending = torch.arange(num_blocks, dtype=torch.float32).expand(2, 2, -1)
    scores = {
        "random": torch.randn(2, 2, num_blocks, generator=torch.Generator().manual_seed(1)),
        "ascending": ascending,
        "descending": -ascending,
        "equal": torch.zeros_like(ascending),
        "nan": torch.full_like(ascending, torch.nan),
    }[order]
    positions = torch.tensor([num_blocks * 128 - 1, 9000 * 128])
    args = {"k": k, "init": 1, "local": 2}

    got = topk_native.select_blocks(scores, positions, **args)

    assert torch.equal(got, topk_torch.select_blocks(scores, positions, **args))


def test_bad_selection_arguments_are_refused():
    scores, positions = torch.zeros(2, 1, 4), torch.zeros(2, dtype=torch.int64)
    for args, changed, says in [
        ((scores.double(), positions), {}, "float64"),
        ((scores[0], positions), {}, "not .T, heads, n."),
        ((scores, positions[:1]), {}, "not .T, heads, n."),
        ((scores, positions), {"k": -1}, "k is -1"),
        ((scores, positions), {"init": -1}, "init"),
    ]:
        with pytest.raises(ValueError, match=says):
            topk_native.select_blocks(*args, **{"k": 2, "init": 0, "local": 1, **changed})
