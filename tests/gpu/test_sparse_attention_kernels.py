"""Triton sparse attention on a GPU: against fp64, the same bits however a query is served, no host in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from tamis.kernels import registry
from tamis.kernels.lane import Lane
from tamis.kernels.sparse_attention import cpu, sparse_attention
from tamis.kernels.sparse_attention import triton as kernels
from tests.kernels.sparse_attention_cases import (
    LANES,
    WAYS,
    Case,
    error,
    inputs,
    interpreted_cases,
    poisoned_rows,
    relative_error,
)

# bf16 outputs, partials and weights; a factor lost or a block too many shows at ten times that.
BOUND = 1e-2
LARGE = Case("nvfp4", "exact", (2600, 129, 1, 5000), 9, kv_heads=4, slots=16)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty returns NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("case", interpreted_cases(), ids=lambda c: c.name)
def test_small_cases_equal_fp64(case):
    assert error(case, "cuda") < BOUND


@pytest.mark.parametrize("way", [None, *WAYS], ids=str)
@pytest.mark.parametrize("format, contract", LANES, ids="-".join)
def test_every_way_and_format_equals_fp64(format, contract, way):
    assert error(replace(LARGE, format=format, contract=contract, way=way), "cuda") < BOUND


@pytest.mark.parametrize("group, kv_heads", [(1, 1), (2, 2), (3, 2), (5, 1), (16, 4)])
def test_every_group_size_equals_fp64(group, kv_heads):
    for dtype in (torch.float32, torch.bfloat16):
        case = replace(LARGE, group=group, kv_heads=kv_heads, dtype=dtype, slots=6)
        assert error(case, "cuda") < BOUND


IN_REGISTERS = [way for way in WAYS if isinstance(way, kernels.QueryWay) and way.steps == 0]
FROM_MEMORY = [None, *(way for way in WAYS if way not in IN_REGISTERS)]


@pytest.mark.parametrize("alike", [False, True], ids=["random", "alike"])
@pytest.mark.parametrize("group", [2, 16])
@pytest.mark.parametrize("format, contract", LANES, ids="-".join)
@pytest.mark.parametrize("ways", [IN_REGISTERS, FROM_MEMORY], ids=["in registers", "from memory"])
def test_ways_that_merge_alike_give_the_same_bits(ways, format, contract, group, alike):
    case = replace(LARGE, format=format, contract=contract, group=group, alike=alike)
    arguments = inputs(case, "cuda")
    want = kernels.sparse_attention(**arguments, config=ways[0])
    different = {
        str(way): float((kernels.sparse_attention(**arguments, config=way) != want).float().mean())
        for way in ways[1:]
        if not torch.equal(kernels.sparse_attention(**arguments, config=way), want)
    }
    assert different == {}


def test_a_token_has_the_same_bits_alone_and_among_others():
    arguments = inputs(replace(LARGE, contexts=(2600, 900), tokens=300), "cuda")
    together = sparse_attention(**arguments, neighbours=1024)
    for i in (0, 77, 299, 511):
        one = {name: arguments[name][i : i + 1] for name in ("q", "selection", "block_tables", "positions")}
        one = {**arguments, **one}
        assert torch.equal(sparse_attention(**one)[0], together[i]), i


def test_every_code_under_every_scale_is_read_as_the_codec_reads_it():
    """With one visible key its value is the output; values differ by whole percents from code to code."""
    for contract in ("exact", "e4m3"):
        k_lane, v_lane = poisoned_rows("nvfp4", 127, 1, contract, "cuda")
        codes = torch.randint(0, 256, (127, 64), dtype=torch.uint8, device="cuda")
        codes[:, :8] = torch.arange(8, device="cuda", dtype=torch.uint8) * 34 + 16
        scales = torch.arange(127, dtype=torch.uint8, device="cuda")
        for lane in (k_lane, v_lane):
            lane.codes[:, 0, 0] = codes
            lane.scales.view(torch.uint8)[:, 0, 0] = scales[:, None]
        selection = torch.zeros(127, 1, 1, dtype=torch.int64, device="cuda")
        tables = torch.arange(127, device="cuda")[:, None]
        q = torch.randn(127, 1, 128, device="cuda") * 1e-3
        positions = torch.zeros(127, dtype=torch.int64, device="cuda")
        got = sparse_attention(q, k_lane, v_lane, selection, tables, positions, 0.1)
        want = torch.stack([v_lane.read(block, 0)[0] for block in range(127)])
        torch.testing.assert_close(got[:, 0], want, rtol=1e-4, atol=0.0)


def test_a_pool_past_two_gibibytes_is_addressed_in_64_bits():
    num_blocks, head_bytes = 280_000, 128 * 72
    rows = torch.zeros(num_blocks, 2 * head_bytes, dtype=torch.uint8, device="cuda")
    assert rows.numel() > 2**32
    k_lane, v_lane = (
        Lane(
            "nvfp4",
            rows[:, at : at + 8192].view(num_blocks, 1, 128, 64),
            rows[:, at + 8192 : at + head_bytes].view(torch.float8_e4m3fn).view(num_blocks, 1, 128, 8),
        )
        for at in (0, head_bytes)
    )
    last = torch.tensor([num_blocks - 1, 5], device="cuda")
    for lane in (k_lane, v_lane):
        lane.codes[last] = torch.randint(0, 256, (2, 1, 128, 64), dtype=torch.uint8, device="cuda")
        lane.scales.view(torch.uint8)[last] = 0x38
    q = torch.randn(2, 16, 128, device="cuda").bfloat16()
    selection = torch.tensor([[[0, 1]], [[0, 1]]], device="cuda")
    arguments = (q, k_lane, v_lane, selection, last.expand(2, -1), torch.tensor([255, 200], device="cuda"), 0.1)
    want = cpu.sparse_attention(*arguments)
    for way in WAYS:
        assert relative_error(kernels.sparse_attention(*arguments, config=way), want.double()) < BOUND, way


def test_rows_without_any_block_are_inert():
    arguments = inputs(LARGE, "cuda")
    emptied = {**arguments, "selection": arguments["selection"].clone()}
    emptied["selection"][3] = -1
    for way in WAYS:
        want = kernels.sparse_attention(**arguments, config=way)
        got = kernels.sparse_attention(**emptied, config=way)
        assert torch.equal(got[3], torch.zeros_like(got[3])), way
        assert torch.equal(got[4:], want[4:]) and torch.equal(got[:3], want[:3]), way


@pytest.mark.parametrize("way", [None, *WAYS], ids=str)
def test_a_graph_replays_with_other_lengths_and_selections(way):
    first = inputs(replace(LARGE, contexts=(2600, 2600), tokens=8), "cuda")
    second = inputs(replace(LARGE, contexts=(2600, 700), tokens=8), "cuda")
    lanes = {"k_lane": first["k_lane"], "v_lane": first["v_lane"], "scale": first["scale"]}
    static = {name: first[name].clone() for name in ("q", "selection", "block_tables", "positions")}
    kernels.sparse_attention(**static, **lanes, config=way)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernels.sparse_attention(**static, **lanes, config=way)
    static["q"].copy_(second["q"])
    static["positions"].copy_(second["positions"])
    static["selection"].copy_(second["selection"])
    graph.replay()
    assert torch.equal(captured, kernels.sparse_attention(**static, **lanes, config=way))


def test_the_registry_finds_the_kernels_and_other_shapes_are_torchs():
    assert registry.select("sparse_attention", "cuda", "nvfp4 e4m3").name == "triton"
    assert registry.select("sparse_attention", "cuda", "float32").name == "torch"
    arguments = inputs(replace(LARGE, group=17, kv_heads=1, contexts=(300,), tokens=3), "cuda")
    assert torch.equal(sparse_attention(**arguments), cpu.sparse_attention(**arguments))
