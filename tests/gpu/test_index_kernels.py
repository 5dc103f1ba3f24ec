"""Index scoring and selection on a GPU: against fp64, the same bits whatever the batch, no host in between."""

from __future__ import annotations

import copy

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from tamis.attention import device_selection
from tamis.kernels import index_score, registry, topk_blocks
from tamis.kernels.index_score import triton as score_triton
from tamis.kernels.lane import Lane
from tamis.kernels.topk_blocks import reference as topk_reference
from tests.kernels.index_cases import (
    DECODE,
    KEYS,
    PREFILL,
    STEP_SCRATCH_BYTES,
    TOPK,
    Requests,
    TopK,
    score_error,
    step_tables,
    visible_only,
    wrong_step_rows,
)

# Products are exact; the tensor core's fp32 sums are cut off rather than rounded.
BOUND = 5e-6
LONG = {
    f"{c.kind}, {c.k} of {c.num_blocks}": c
    for c in (
        *(TopK(n, kind=kind, tokens=9, heads=4) for n in (2000, 4097, 8192, 16384) for kind in ("normal", "special")),
        TopK(8192, 32, 2, 3, "ties", 9),
        TopK(16384, 16, 0, 1, "equal"),
        TopK(5000, 16, 0, 1, "ascending"),
    )
}


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty returns NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("name", DECODE)
def test_decode_scores_equal_fp64(keys, name):
    shape, config = DECODE[name]
    requests = Requests(keys, **shape, device="cuda", seed=1)
    assert score_error(requests.decode(config), requests.expected(), requests.positions) < BOUND


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("name", PREFILL)
def test_prefill_scores_equal_fp64(keys, name):
    shape, config = PREFILL[name]
    requests = Requests(keys, **shape, device="cuda", seed=2)
    assert score_error(requests.prefill(config), requests.expected(), requests.positions) < BOUND


@pytest.mark.parametrize("keys", KEYS)
def test_a_query_has_the_same_bits_in_every_batch_and_both_ways(keys):
    together = Requests(keys, 4, [16, 5, 1], [3000, 1500, 5000], device="cuda")
    wide = visible_only(together.decode(), together.positions)
    assert torch.equal(visible_only(together.prefill(), together.positions), wide)
    for r in range(3):
        for t in range(int(together.starts[r]), int(together.starts[r + 1])):
            out = torch.full((1, 4, together.tables.shape[1]), torch.nan, device="cuda")
            score_triton.decode_scores(
                together.q[t : t + 1],
                together.lane,
                together.tables[r : r + 1],
                torch.tensor([0, 1], device="cuda"),
                together.positions[t : t + 1],
                out,
                max_tokens=1,
            )
            assert torch.equal(visible_only(out, together.positions[t : t + 1])[0], wide[t])


@pytest.mark.parametrize("keys", KEYS)
def test_nan_stays_where_it_is(keys):
    requests = Requests(keys, 4, [3], [700], device="cuda")
    clean = requests.decode()
    requests.q[1, 2] = torch.nan
    scores = requests.decode()
    assert scores[1, 2].isnan().all()
    scores[1, 2] = clean[1, 2]
    assert torch.equal(scores, clean)
    if keys == "nvfp4" or keys == "nvfp4 e4m3":
        requests.lane.scales.view(torch.uint8)[requests.tables[0, 3], 0, 17, 5] = 0x7F
    else:
        requests.lane.codes.view(torch.uint8)[requests.tables[0, 3], 0, 17] = 0xFF
    for scores in (requests.decode(), requests.prefill()):
        assert scores[:, :, 3].isnan().all()
        assert not scores[:, :, [0, 1, 2, 4, 5]][0].isnan().any()


def test_blocks_past_two_gigabytes_are_found():
    small = Requests("nvfp4", 4, [4], [600], device="cuda")
    stride = 8 << 20
    rows = torch.empty(400, stride, dtype=torch.uint8, device="cuda")
    codes = rows[:, 16 : 16 + 8192].unflatten(1, (1, 128, 64))
    scales = rows[:, 8208 : 8208 + 1024].unflatten(1, (1, 128, 8))
    far = torch.tensor([399, 7, 300, 256, 398], device="cuda")
    codes[far] = small.lane.codes[small.tables[0]]
    scales[far] = small.lane.scales.view(torch.uint8)[small.tables[0]]
    want = small.decode()
    small.lane = Lane("nvfp4", codes, scales.view(torch.float8_e4m3fn), "exact")
    small.tables = far[None]
    assert torch.equal(small.decode(), want)


@pytest.mark.parametrize("name", [*TOPK, *LONG])
def test_selection_equals_the_reference(name):
    assert {**TOPK, **LONG}[name].wrong_rows("cuda") == 0


@pytest.mark.parametrize("scratch_bytes", STEP_SCRATCH_BYTES)
@pytest.mark.parametrize("keys", KEYS)
def test_a_whole_step_is_selected_as_by_fp64_scores(keys, scratch_bytes):
    assert wrong_step_rows(keys, scratch_bytes, "cuda") == 0


def test_a_decode_step_can_be_captured_and_replayed_with_other_lengths():
    requests = Requests("nvfp4 e4m3", 4, [2, 0, 8, 1], [3000, 1, 4100, 2600], device="cuda")
    tables = step_tables(requests)
    starts = device_selection.request_starts(tables)
    rule = {"k": 16, "init": 0, "local": 1}
    device_selection.select(requests.q, requests.lane, tables, starts, **rule)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = device_selection.select(requests.q, requests.lane, tables, starts, **rule)
    requests.positions -= 700
    requests.tables.copy_(requests.tables.roll(1, 1))
    starts.copy_(torch.tensor([0, 1, 2, 10, 11], device="cuda"))
    requests.q.copy_(requests.q.flip(0))
    graph.replay()
    scores = visible_only(
        torch.cat([_one(requests, r, starts).decode() for r in range(4)]),
        requests.positions,
    )
    want = topk_reference.select_blocks(scores.cpu(), requests.positions.cpu(), **rule)
    assert torch.equal(captured.cpu(), want)


def _one(requests: Requests, r: int, starts: torch.Tensor) -> Requests:
    """Request r alone."""
    one = copy.copy(requests)
    tokens = slice(int(starts[r]), int(starts[r + 1]))
    one.q, one.positions = requests.q[tokens], requests.positions[tokens]
    one.counts = [tokens.stop - tokens.start]
    one.starts = torch.tensor([0, one.counts[0]], device="cuda")
    one.tables = requests.tables[r : r + 1]
    return one


def test_the_registry_finds_the_kernels():
    requests = Requests("nvfp4 e4m3", 4, [1], [5], device="cuda")
    assert index_score.on_device(requests.q, requests.lane)
    assert not index_score.on_device(requests.q.float(), requests.lane)
    assert registry.select("topk_blocks", "cuda", topk_blocks.variant(16, 8192)).name == "triton"
    assert registry.select("topk_blocks", "cuda", topk_blocks.variant(64, 8192)).name == "torch"
