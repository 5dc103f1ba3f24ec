"""How the GPU benchmarks time calls and find the ceilings of the card they run on."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton


def time_us(calls: list[Callable[[], object]], rep_ms: int = 60) -> float:
    """Median microseconds a call, the calls captured in one graph; `rep_ms` is spent on replays."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    median = triton.testing.do_bench(graph.replay, warmup=10, rep=rep_ms, return_mode="median")
    return float(median) * 1000.0 / len(calls)


def ceilings() -> dict[str, float]:
    """{"read": bytes/s of a large reduction, "bf16": FLOP/s of a product of 8192³} of this card now."""
    large = torch.randn(2**30, device="cuda")
    read = large.nbytes / (triton.testing.do_bench(large.sum, warmup=10, rep=100, return_mode="median") * 1e-3)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = triton.testing.do_bench(lambda: a @ b, warmup=10, rep=100, return_mode="median")
    return {"read": read, "bf16": 2.0 * 8192**3 / (product * 1e-3)}
