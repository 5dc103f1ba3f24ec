"""What holds for the whole suite: one thread a process, repeatable hypothesis, GPU tests only where a GPU is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports torch: the suite runs in several processes, and more threads than cores only slow each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

GPU_TESTS = Path(__file__).parent / "gpu"

# The same examples on every run, so that a red suite is red for everyone. `--hypothesis-profile=explore` looks further.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("explore", parent=settings.get_profile("repeatable"), derandomize=False, max_examples=1000)
settings.load_profile("repeatable")


def gpu_available() -> bool:
    """Whether torch sees a GPU. Imports torch, so ask only when a GPU test would be collected."""
    import torch

    return torch.cuda.is_available()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/gpu out, uncollected, on a machine without a GPU."""
    if collection_path == GPU_TESTS and not gpu_available():
        return True
    return None


def pytest_report_header(config: pytest.Config) -> str:
    """Say what was left out, so that a green CPU run is not taken for a green GPU run."""
    if not GPU_TESTS.is_dir():
        return "gpu tests: none"
    return "gpu tests: collected" if gpu_available() else "gpu tests: left out, no GPU here"
