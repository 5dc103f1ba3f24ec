"""The C++ extension: its kernels equal the torch ones bit by bit, and its absence is told, not raised."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from tamis.cli import health_checks
from tamis.kernels import cpu_extension, nvfp4

EXTENSION = cpu_extension.load()


def usable_paths() -> list[str]:
    """The code paths of this build on this CPU; none without the extension."""
    return [path for path, usable in EXTENSION.build.get("paths", {}).items() if usable]


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here")
def test_a_machine_with_a_compiler_has_the_extension() -> None:
    """Without it every test of a native kernel is left out, and an install goes on when the build breaks."""
    assert EXTENSION.module is not None, EXTENSION.reason


def all_codes_and_scales() -> tuple[torch.Tensor, torch.Tensor]:
    """Every code under every E4M3 scale byte, NaN and negative ones included: [256, 8] and [256, 1]."""
    row = torch.tensor([low | high << 4 for low, high in zip(range(0, 16, 2), range(1, 16, 2), strict=True)])
    return row.to(torch.uint8).repeat(256, 1), torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)[:, None]


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(actual.isnan(), expected.isnan())
    finite = ~expected.isnan()
    assert torch.equal(actual[finite].view(torch.int32), expected[finite].view(torch.int32))


@pytest.mark.parametrize("contract", ["exact", "e4m3"])
@pytest.mark.parametrize("path", usable_paths())
def test_unpack_equals_torch_for_every_code_and_scale(path: str, contract: str) -> None:
    codes, scales = all_codes_and_scales()

    actual = cpu_extension.nvfp4_unpack(codes, scales, path, contract)

    assert_same_bits(actual, nvfp4.cpu.dequantize(codes, scales, contract))


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (63, 64), (3, 5, 24), (1000, 8)], ids=str)
def test_unpack_equals_torch_on_odd_shapes(path: str, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 126, (*shape[:-1], shape[-1] // 8), dtype=torch.uint8, generator=generator)

    actual = cpu_extension.nvfp4_unpack(codes, scales.view(torch.float8_e4m3fn), path)

    assert actual.shape == (*shape[:-1], shape[-1] * 2)
    assert_same_bits(actual, nvfp4.cpu.dequantize(codes, scales.view(torch.float8_e4m3fn)))


@pytest.mark.parametrize("path", usable_paths())
def test_unpack_writes_its_output_and_nothing_around_it(path: str) -> None:
    """The raw entry on a slice of a poisoned buffer, unaligned to any vector size."""
    groups = 7
    buffer = np.full(groups * 16 + 4, -1e30, dtype=np.float32)
    codes = np.arange(groups * 8, dtype=np.uint8)
    assert EXTENSION.module is not None

    EXTENSION.module.nvfp4_unpack(codes, np.full(groups, 0x38, np.uint8), buffer[1:-3], path)

    assert buffer[0] == buffer[-1] == buffer[-2] == buffer[-3] == np.float32(-1e30)
    assert np.abs(buffer[1:-3]).max() <= 6.0


@pytest.mark.parametrize(
    ("codes", "scales", "says"),
    [
        (torch.zeros(2, 8), torch.zeros(2, 1), "uint8"),
        (torch.zeros(2, 8, dtype=torch.uint8), torch.zeros(2, 2).to(torch.float8_e4m3fn), "D/16"),
        (torch.zeros(2, 7, dtype=torch.uint8), torch.zeros(2, 1).to(torch.float8_e4m3fn), "D/16"),
        (torch.zeros(8, 2, dtype=torch.uint8).T, torch.zeros(2, 1).to(torch.float8_e4m3fn), "contiguous"),
    ],
    ids=["dtype", "scale count", "half a group", "not contiguous"],
)
def test_bad_tensors_are_refused(codes: torch.Tensor, scales: torch.Tensor, says: str) -> None:
    expected = (ValueError, says) if EXTENSION.module else (RuntimeError, "without its C")
    with pytest.raises(expected[0], match=expected[1]):
        cpu_extension.nvfp4_unpack(codes, scales)


def test_cpu_features_agree_with_the_operating_system() -> None:
    """Linux lists the same flags; a flag that we call usable must stand there."""
    with open("/proc/cpuinfo") as cpuinfo:
        flags = next((line.split() for line in cpuinfo if line.startswith("flags")), [])
    names = {"avx512vbmi": "avx512vbmi", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}

    assert {name: names.get(name, name) in flags for name in EXTENSION.cpu} == EXTENSION.cpu


def test_a_missing_extension_is_a_reason_and_not_an_exception() -> None:
    script = (
        "import sys; sys.modules['tamis._cpu'] = None\n"
        "from tamis.kernels.cpu_extension import load\n"
        "print(load().module, load().reason)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "None Tamis was installed without its C++ extension.\n"


def test_where_there_is_a_compiler_there_is_an_extension() -> None:
    # The install goes on without it when C++ does not compile: that must not pass unseen where it could.
    assert cpu_extension.load().module is not None or health_checks.compiler().status != "ok"


def test_a_build_that_lacks_a_kernel_is_told_and_not_used(monkeypatch) -> None:
    if EXTENSION.module is None:
        pytest.skip(EXTENSION.reason)
    older = types.ModuleType("tamis._cpu")
    older.nvfp4_unpack = EXTENSION.module.nvfp4_unpack
    monkeypatch.setattr(cpu_extension.importlib, "import_module", lambda name: older)
    cpu_extension.load.cache_clear()
    try:
        assert cpu_extension.load().reason == "The C++ extension is of an older build: install Tamis again (make venv)."
        with pytest.raises(RuntimeError, match="older build"):
            cpu_extension.module()
    finally:
        cpu_extension.load.cache_clear()
