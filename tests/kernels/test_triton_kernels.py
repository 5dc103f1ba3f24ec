"""The Triton kernels without a GPU: their arithmetic in Triton's interpreter, and machine code for sm_90 and sm_100."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.timeout(300),
]
# The interpreter rounds to bf16 toward zero, which the hidden layer sees twice.
BOUND = 1.5e-2
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    # The interpreter has to be asked for before triton is imported.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kernels.packed_cases"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return json.loads(done.stdout)


def test_every_case_equals_fp64(errors) -> None:
    assert len(errors) >= 16
    assert {name: e["error"] for name, e in errors.items() if not e["error"] < BOUND} == {}


def test_a_lost_factor_shows(errors) -> None:
    mixtures = {name: e for name, e in errors.items() if "without alpha" in e}
    assert len(mixtures) >= 9
    for name, found in mixtures.items():
        for lost in ("scale", "alpha", "limit", "weights"):
            assert found[f"without {lost}"] > 3 * BOUND, (name, lost)


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("form", ["nvfp4", "mxfp8"])
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_linear_compiles_to_machine_code(form: str, tokens: int, capability: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tamis.kernels.linear.triton import linear_kernel, tiles

    t = tiles(tokens)
    words = {"nvfp4": "*i32", "mxfp8": "*i64"}[form]
    pointers = {"x_ptr": "*bf16", "codes_ptr": words, "scales_ptr": "*u8", "row_scales_ptr": "*fp32"}
    pointers["out_ptr"] = "*bf16"
    constants = {
        "N": 8192,
        "K": 6144,
        "FORMAT": form,
        "PHASED": t.phase,
        "BLOCK_N": t.block_n,
        "BLOCK_M": t.block_m,
        "BLOCK_K": t.block_k,
        "STAGES": t.num_stages,
        "PTX": True,
    }
    signature = {**pointers, "tokens": "i32", **dict.fromkeys(constants, "constexpr")}
    assert list(signature) == linear_kernel.arg_names
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers))}

    compiled = triton.compile(
        ASTSource(linear_kernel, signature, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": t.num_warps},
    )

    assert len(compiled.asm["cubin"]) > 1000
    # Weights are unpacked in registers by byte permutes, never by conversions of single values.
    assert "prmt.b32" in compiled.asm["ptx"]
