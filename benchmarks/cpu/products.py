"""Native fp32 products and the native mixture beside torch's and this machine's own ceilings; JSON last.

    python -m benchmarks.cpu.products [--threads N]

Shapes are the bundled model's. Each case is checked against torch before it is timed; medians. The floor is the larger
of FLOPs ÷ a square sgemm and bytes of weights ÷ a read, both measured in the same run; weights of this size stay in
cache, so that one token may beat the read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.cpu.measure import ceilings, median_s
from tamis.kernels.linear import cpu as linear_torch
from tamis.kernels.linear import native as linear_native
from tamis.kernels.moe import cpu as moe_torch
from tamis.kernels.moe import native as moe_native

HIDDEN, WIDTH, INNER, SHARED, EXPERTS, TOP_K = 256, 1408, 192, 256, 16, 2
FACTORS = {"scale": 2.0, "alpha": 1.702, "limit": 7.0}
TOKENS = (1, 8, 64, 512)


def mixture(tokens: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Inputs of one mixture."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5

    return {
        "x": draw(tokens, HIDDEN),
        "expert_ids": torch.rand(tokens, EXPERTS, generator=generator).topk(TOP_K).indices,
        "weights": torch.rand(tokens, TOP_K, generator=generator),
        "gate_up": draw(EXPERTS, 2 * INNER, HIDDEN),
        "down": draw(EXPERTS, HIDDEN, INNER),
        "shared_gate_up": draw(2 * SHARED, HIDDEN),
        "shared_down": draw(HIDDEN, SHARED),
    }


def measure(
    case: str, native: Callable[[], Tensor], torch_: Callable[[], Tensor], flops: float, read: float, ceiling: dict
) -> dict[str, object]:
    """One line."""
    torch.testing.assert_close(native(), torch_(), rtol=1e-4, atol=1e-4)
    native_s, torch_s = median_s(native), median_s(torch_)
    floor_s = max(flops / ceiling["sgemm"], read / ceiling["read"])
    line = {"case": case, "native_us": native_s * 1e6, "torch_us": torch_s * 1e6, "floor_us": floor_s * 1e6}
    line |= {"gflop_s": flops / native_s * 1e-9}
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in line.items()}
    print("  ".join(f"{k} {v}" for k, v in rounded.items()), flush=True)
    return rounded


def main() -> None:
    """Print lines, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    ceiling = ceilings()
    generator = torch.Generator().manual_seed(0)
    results = []
    with torch.inference_mode():
        for tokens in TOKENS:
            x, w = (torch.randn(n, HIDDEN, generator=generator) for n in (tokens, WIDTH))
            results.append(
                measure(
                    f"product {HIDDEN} to {WIDTH}, {tokens} tokens",
                    lambda x=x, w=w: linear_native.linear(x, w),
                    lambda x=x, w=w: linear_torch.linear(x, w),
                    2.0 * tokens * w.numel(),
                    w.nbytes,
                    ceiling,
                )
            )
        for tokens in TOKENS:
            inputs = mixture(tokens, generator)
            one, shared = 3 * HIDDEN * INNER, 3 * HIDDEN * SHARED
            results.append(
                measure(
                    f"mixture of {EXPERTS}, {tokens} tokens",
                    lambda i=inputs: moe_native.moe(**i, **FACTORS),
                    lambda i=inputs: moe_torch.moe(**i, **FACTORS),
                    2.0 * tokens * (TOP_K * one + shared),
                    4.0 * (len(inputs["expert_ids"].unique()) * one + shared),
                    ceiling,
                )
            )
    gates = {"sgemm_gflop_s": round(ceiling["sgemm"] * 1e-9, 1), "read_gb_s": round(ceiling["read"] * 1e-9, 1)}
    print(json.dumps({"benchmark": "cpu/products", "threads": threads, **gates, "results": results}))


if __name__ == "__main__":
    main()
