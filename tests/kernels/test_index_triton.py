"""Index scoring and selection in Triton without a GPU: arithmetic in the interpreter, and machine code for sm_90."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.test_triton_kernels import SHARED_MEMORY_BYTES, compiled

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.timeout(300),
]
ROOT = Path(__file__).parents[2]
KEYS = {
    "nvfp4": ("*i32", "*u8"),
    "nvfp4 e4m3": ("*i32", "*u8"),
    "fp8": ("*i64", "*i64"),
    "bfloat16": ("*bf16", "*bf16"),
}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, float]]:
    # The interpreter has to be asked for before triton is imported.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kernels.index_cases"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return json.loads(done.stdout)


def test_every_score_equals_fp64(results) -> None:
    assert len(results["scores"]) >= 36
    assert {name: error for name, error in results["scores"].items() if not error < 1e-6} == {}


def test_every_selection_equals_the_reference(results) -> None:
    assert len(results["selections"]) >= 24
    assert {name: wrong for name, wrong in results["selections"].items() if wrong} == {}


def spilled_bytes(code, folder: Path) -> int:
    """What a thread keeps in local memory."""
    import triton

    program = folder / "kernel.cubin"
    program.write_bytes(code.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    listing = subprocess.run([tool, "-res-usage", program], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:\d+ STACK:(\d+)", listing)
    assert found, listing
    return int(found[1])


@pytest.mark.parametrize("rows", [4, 32, 64])
@pytest.mark.parametrize("keys", KEYS)
def test_decode_compiles_to_wgmma_without_spills(keys: str, rows: int, tmp_path: Path) -> None:
    from tamis.kernels.index_score.triton import decode_kernel, decode_tiles

    t = decode_tiles(rows, 32, 1024, keys)
    codes, scales = KEYS[keys]
    arguments = {"q_ptr": "*bf16", "codes_ptr": codes, "scales_ptr": scales, "tables_ptr": "*i64", "starts_ptr": "*i64"}
    arguments |= {"positions_ptr": "*i64", "out_ptr": "*fp32", "first_token": "i32", "table_stride": "i32"}
    arguments |= {"block_stride": "i32", "out_stride": "i32"}
    constants = {"HEADS": 4, "ROWS": t.rows, "CHUNK": t.chunk, "FORMAT": keys, "KEYS_FIRST": t.keys_first}
    constants |= {"COLLECT": t.collect, "STAGES": t.num_stages, "PTX": True}

    code = compiled(decode_kernel, arguments, constants, t.num_warps, 90)

    assert f"wgmma.mma_async.sync.aligned.m64n{t.rows}k16" in code.asm["ptx"]
    # Four programs a processor.
    assert code.metadata.shared <= SHARED_MEMORY_BYTES // (2 if keys == "bfloat16" else 4)
    assert spilled_bytes(code, tmp_path) == 0


@pytest.mark.parametrize("keys", KEYS)
def test_prefill_compiles_to_wgmma_without_spills(keys: str, tmp_path: Path) -> None:
    from tamis.kernels.index_score.triton import prefill_kernel, prefill_tiles

    t = prefill_tiles(32768, 1024)
    codes, scales = KEYS[keys]
    arguments = {"q_ptr": "*bf16", "codes_ptr": codes, "scales_ptr": scales, "table_ptr": "*i64"}
    arguments |= {"positions_ptr": "*i64", "out_ptr": "*fp32", "num_rows": "i32", "block_stride": "i32"}
    arguments |= {"out_stride": "i32"}
    constants = {"HEADS": 4, "ROWS": t.rows, "CHUNK": t.chunk, "FORMAT": keys, "KEYS_FIRST": t.keys_first}
    constants |= {"COLLECT": t.collect, "STAGES": t.num_stages, "PTX": True}

    code = compiled(prefill_kernel, arguments, constants, t.num_warps, 90)

    assert "wgmma.mma_async.sync.aligned.m64n128k16" in code.asm["ptx"]
    # Two programs a processor.
    assert code.metadata.shared <= SHARED_MEMORY_BYTES // 2
    assert spilled_bytes(code, tmp_path) <= 64


@pytest.mark.parametrize("num_blocks", [64, 1024, 8192, 16384])
def test_selection_compiles_without_spills(num_blocks: int, tmp_path: Path) -> None:
    from tamis.kernels.topk_blocks.triton import select_kernel, warps

    arguments = {"scores_ptr": "*fp32", "positions_ptr": "*i64", "out_ptr": "*i64", "num_blocks": "i32"}
    arguments |= {"stride": "i32"}
    num_warps = warps(num_blocks)
    constants = {"HEADS": 4, "K": 16, "INIT": 0, "LOCAL": 1, "N": num_blocks}
    constants["GROUPS"] = min(num_blocks, 128 * num_warps)

    code = compiled(select_kernel, arguments, constants, num_warps, 90)

    # Counts are summed over a warp by one instruction.
    assert "redux.sync.add.s32" in code.asm["ptx"]
    assert spilled_bytes(code, tmp_path) <= 128
