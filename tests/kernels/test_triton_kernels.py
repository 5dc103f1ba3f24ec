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
    return interpreted("tests.kernels.packed_cases")


def interpreted(module: str):
    """The JSON that a module prints when Triton interprets its kernels."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return json.loads(done.stdout)


def test_every_case_equals_fp64(errors) -> None:
    assert len(errors) >= 16
    assert {name: e["error"] for name, e in errors.items() if not e["error"] < BOUND} == {}


def test_a_lost_factor_shows(errors) -> None:
    mixtures = {name: e for name, e in errors.items() if "without alpha" in e}
    assert len(mixtures) >= 9
    for name, found in mixtures.items():
        # A single token's two weights may happen to lie close to equal ones.
        for lost in ("scale", "alpha", "limit", *(() if " 1 tokens" in name else ("weights",))):
            assert found[f"without {lost}"] > 3 * BOUND, (name, lost)


# What a program may have on sm_90, and with it on sm_100.
SHARED_MEMORY_BYTES = 232_448
WORDS = {"plain": "*bf16", "mxfp8": "*i64", "nvfp4": "*i32"}
SCALES = {"plain": "*bf16", "mxfp8": "*u8", "nvfp4": "*u8"}
ROW_SCALES = {"plain": "*bf16", "mxfp8": "*i64", "nvfp4": "*fp32"}


def compiled(kernel, arguments: dict[str, str], constants: dict[str, object], num_warps: int, capability: int):
    """The kernel for a GPU of a compute capability, with the alignments that torch's tensors have."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    constants = {name: constants[name] for name in kernel.arg_names if name not in arguments}
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    assert list(signature) == kernel.arg_names
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(arguments.values()) if kind.startswith("*")}
    source = ASTSource(kernel, signature, constants, aligned)
    return compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps})


def weight_pointers(form: str, prefix: str = "") -> dict[str, str]:
    return {
        f"{prefix}codes_ptr": WORDS[form],
        f"{prefix}scales_ptr": SCALES[form],
        f"{prefix}row_scales_ptr": ROW_SCALES[form],
    }


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("form", ["nvfp4", "mxfp8"])
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_linear_compiles_to_machine_code(form: str, tokens: int, capability: int) -> None:
    from tamis.kernels.linear.triton import linear_kernel, tiles

    t = tiles(tokens)
    arguments = {"x_ptr": "*bf16", **weight_pointers(form), "out_ptr": "*bf16", "tokens": "i32"}
    constants = {"N": 8192, "K": 6144, "FORMAT": form, "PHASED": t.phase, "STAGES": t.num_stages, "PTX": True}
    blocks = {"BLOCK_N": t.block_n, "BLOCK_M": t.block_m, "BLOCK_K": t.block_k}

    code = compiled(linear_kernel, arguments, {**constants, **blocks}, t.num_warps, capability)

    assert len(code.asm["cubin"]) > 1000
    assert code.metadata.shared <= SHARED_MEMORY_BYTES
    # Weights are unpacked in registers by byte permutes, never by conversions of single values.
    assert "prmt.b32" in code.asm["ptx"]


@pytest.mark.parametrize(
    "routed, shared, tokens",
    [("nvfp4", "mxfp8", 1), ("nvfp4", "mxfp8", 64), ("nvfp4", "mxfp8", 4096), ("plain", "plain", 64)],
)
def test_mixture_compiles_and_fits_into_shared_memory(routed: str, shared: str, tokens: int) -> None:
    from tamis.kernels.moe.triton import down_kernel, gate_up_kernel, tiles

    t = tiles(tokens, (routed, shared))
    weights = {**weight_pointers(routed), **weight_pointers(shared, "shared_")}
    outputs = {"out_ptr": "*bf16", "shared_out_ptr": "*bf16", "tiles_ptr": "*i32"}
    gate_up = {"x_ptr": "*bf16", "phased_ptr": "*bf16", **weights, **outputs, "pairs_ptr": "*i32"}
    gate_up |= {"tokens": "i32", "alpha": "fp32", "limit": "fp32"}
    down = {"x_ptr": "*bf16", "shared_x_ptr": "*bf16", **weights, **outputs, "tokens": "i32"}
    constants = {"TOP_K": 4, "H": 6144, "INNER": 3072, "SHARED": 3072, "FORMAT": routed, "SHARED_FORMAT": shared}
    constants |= {"PHASE": t.phase, "STAGES": t.num_stages, "PTX": True, "BLOCK_N": t.block_n, "BLOCK_M": t.block_m}
    constants |= {"REMAINDER_M": t.remainder_m, "SHARED_M": t.shared_m, "BLOCK_K": t.block_k}

    for kernel, arguments in ((gate_up_kernel, gate_up), (down_kernel, down)):
        code = compiled(kernel, arguments, constants, t.num_warps, 90)
        assert code.metadata.shared <= SHARED_MEMORY_BYTES
