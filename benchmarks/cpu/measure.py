"""How the CPU benchmarks time calls and find the ceilings of the machine they run on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def times_s(call: Callable[[], object], budget_s: float = 0.4) -> list[float]:
    """Times of a call, which is made once before and then at least three times, within the budget."""
    call()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget_s and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def median_s(call: Callable[[], object], budget_s: float = 0.4) -> float:
    """The median of `times_s`."""
    return statistics.median(times_s(call, budget_s))


def ceilings() -> dict[str, float]:
    """{"sgemm": FLOP/s of a product of 1024³, "read": bytes/s of a sum over 256 MiB}, each at its fastest run.

    Other work on the machine only slows them.
    """
    a, large = torch.randn(1024, 1024), torch.ones(1 << 26)
    return {"sgemm": 2 * 1024**3 / min(times_s(lambda: a @ a)), "read": large.nbytes / min(times_s(large.sum))}
