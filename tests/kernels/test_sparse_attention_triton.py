"""Triton sparse attention without a GPU: its arithmetic in the interpreter, and its machine code."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from tamis.kernels.lane import Lane, encode
from tests.kernels.test_triton_kernels import SHARED_MEMORY_BYTES, compiled, interpreted

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.timeout(300),
]
# The interpreter rounds to bf16 toward zero: queries, partials and the output.
BOUND = 1.5e-2


def test_every_case_equals_fp64() -> None:
    errors = interpreted("tests.kernels.sparse_attention_cases")
    assert len(errors) >= 12
    assert {name: error for name, error in errors.items() if not error < BOUND} == {}


CODES = {"nvfp4": "*i64", "fp8": "*i64", "bfloat16": "*bf16"}
VARIANTS = [("nvfp4", "exact"), ("nvfp4", "e4m3"), ("fp8", "exact"), ("bfloat16", "exact")]
IDS = ["nvfp4-exact", "nvfp4-e4m3", "fp8", "bfloat16"]


def pointers(form: str) -> dict[str, str]:
    codes, scales = CODES[form], "*u8" if form == "nvfp4" else CODES[form]
    return {"k_codes_ptr": codes, "k_scales_ptr": scales, "v_codes_ptr": codes, "v_scales_ptr": scales}


def constants(form: str, contract: str, group: int = 16) -> dict[str, object]:
    """At M3's shape, over rows of its size."""
    from tamis.kernels.sparse_attention.triton import shape_constants

    codes, scales = encode(torch.zeros(1, 4, 128, 128), form)
    row_bytes = 1_822_720
    codes = torch.empty(1).new_empty_strided(
        codes.shape, (row_bytes // codes.element_size(), *codes.stride()[1:]), dtype=codes.dtype
    )
    if scales is not None:
        scales = scales.as_strided(scales.shape, (row_bytes, *scales.stride()[1:]))
    return {**shape_constants(Lane(form, codes, scales, contract), group, 4, 16), "PTX": True}


def check_products(code, capability: int) -> None:
    """Every way has the same instruction sum its products, so that all agree to the bit."""
    assert ("wgmma.mma_async" if capability == 90 else "tcgen05.mma") in code.asm["ptx"]
    assert "mma.sync" not in code.asm["ptx"]


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("tokens, steps", [(1, 0), (1, 1), (4, 0), (8, 0)])
@pytest.mark.parametrize("form, contract", VARIANTS, ids=IDS)
def test_query_kernel_compiles_to_machine_code(form, contract, tokens, steps, capability) -> None:
    from tamis.kernels.sparse_attention.triton import QueryWay, query_constants
    from tamis.kernels.sparse_attention.triton_query import query_kernel

    way = QueryWay(tokens, steps)
    arguments = {"q_ptr": "*bf16", **pointers(form), "selection_ptr": "*i64", "tables_ptr": "*i64"}
    arguments |= {"positions_ptr": "*i64", "blocks_ptr": "*i64", "members_ptr": "*i32", "counts_ptr": "*i32"}
    arguments |= {"out_ptr": "*bf16", "part_out_ptr": "*bf16", "part_stats_ptr": "*fp32"}
    arguments |= {"tokens": "i32", "table_stride": "i32", "factor": "fp32"}
    code = compiled(
        query_kernel, arguments, {**constants(form, contract), **query_constants(way, 16)}, way.num_warps, capability
    )

    assert code.metadata.shared <= SHARED_MEMORY_BYTES // 2
    check_products(code, capability)


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("form, contract", VARIANTS, ids=IDS)
def test_outer_kernel_compiles_to_machine_code(form, contract, capability) -> None:
    from tamis.kernels.sparse_attention.triton import OuterWay, outer_constants
    from tamis.kernels.sparse_attention.triton_outer import outer_kernel

    way = OuterWay(128, 8)
    arguments = {"q_ptr": "*fp16" if contract == "e4m3" else "*bf16", **pointers(form), "selection_ptr": "*i64"}
    arguments |= {"positions_ptr": "*i64", "keys_ptr": "*i32", "order_ptr": "*i64", "part_out_ptr": "*bf16"}
    arguments |= {"part_stats_ptr": "*fp32", "pairs": "i32", "factor": "fp32"}
    code = compiled(
        outer_kernel, arguments, {**constants(form, contract), **outer_constants(way, 16)}, way.num_warps, capability
    )

    # Two programs to a processor.
    assert code.metadata.shared <= SHARED_MEMORY_BYTES // 2
    check_products(code, capability)
