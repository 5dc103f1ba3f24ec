"""Index scores and exact top-k on a CPU at M3's shapes: native kernels, torch path and ceilings of the same run.

Run: python -m benchmarks.cpu.index_select [--threads N] [--blocks N]

Small cases are checked against the references first. Then calls on random keys are timed, the median counts. The
floor of a scoring call is the larger of its FLOPs (visible keys) at the speed of torch's sgemm and of its bytes of keys
at the speed of a large sum; top-k's is a sum over the same scores, from the same cache. Shares are floor ÷ time. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from benchmarks.cpu.measure import ceilings, median_s
from tamis.kernels import cpu_extension
from tamis.kernels.index_score import cpu as score_torch
from tamis.kernels.index_score import native as score_native
from tamis.kernels.index_score import reference as score_reference
from tamis.kernels.lane import Lane, encode
from tamis.kernels.topk_blocks import cpu as topk_torch
from tamis.kernels.topk_blocks import native as topk_native

HEADS, DIM, TOP_K = 4, 128, 16
LANES = (("float32", "exact"), ("bfloat16", "exact"), ("fp8", "exact"), ("nvfp4", "exact"), ("nvfp4", "e4m3"))
KEY_BYTES = {"float32": 512, "bfloat16": 256, "fp8": 128, "nvfp4": 72}
TOKENS = (1, 8, 512)


def check(lane: Lane, table: torch.Tensor, generator: torch.Generator) -> None:
    """Raises AssertionError where the native kernels leave the references."""
    positions = torch.tensor([3, 200, 3 * 128 - 1])
    q = torch.randn(3, HEADS, DIM, generator=generator)
    got = score_native.block_scores(q, lane, table, positions)
    want = score_reference.block_scores(q, lane, table, positions)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    args: dict[str, Any] = {"k": 2, "init": 0, "local": 1}
    chosen = topk_native.select_blocks(got, positions, **args)
    assert torch.equal(chosen, topk_torch.select_blocks(got, positions, **args))


def score_results(num_blocks: int, ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """One line a lane format and number of query tokens."""
    results = []
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(num_blocks, 1, 128, DIM, generator=generator)
    table = torch.randperm(num_blocks, generator=generator)
    for format, contract in LANES:
        lane = Lane(format, *encode(keys, format), contract)
        check(lane, table, generator)
        for tokens in TOKENS:
            q = torch.randn(tokens, HEADS, DIM, generator=generator)
            positions = torch.arange(num_blocks * 128 - tokens, num_blocks * 128)
            args = (q, lane, table, positions)
            native_s = median_s(lambda args=args: score_native.block_scores(*args))
            torch_s = median_s(lambda args=args: score_torch.block_scores(*args))
            flops = 2 * HEADS * DIM * int((positions + 1).sum())
            floor_s = max(flops / ceiling["sgemm"], num_blocks * 128 * KEY_BYTES[format] / ceiling["read"])
            results.append(
                {
                    "op": "index_score",
                    "case": f"{format} {contract}, {tokens} tokens, {num_blocks} blocks",
                    "native_us": native_s * 1e6,
                    "torch_us": torch_s * 1e6,
                    "floor_us": floor_s * 1e6,
                    "gflop_s": flops / native_s * 1e-9,
                    "gb_s": num_blocks * 128 * KEY_BYTES[format] / native_s * 1e-9,
                }
            )
    return results


def topk_results() -> list[dict[str, Any]]:
    """One line a number of blocks and tokens."""
    results = []
    generator = torch.Generator().manual_seed(1)
    for tokens, num_blocks in ((1, 64), (1, 1024), (1, 16384), (512, 64), (512, 1024)):
        scores = torch.randn(tokens, HEADS, num_blocks, generator=generator)
        positions = torch.full((tokens,), num_blocks * 128 - 1)
        args: dict[str, Any] = {"k": TOP_K, "init": 0, "local": 1}
        native_s = median_s(lambda s=scores, p=positions, a=args: topk_native.select_blocks(s, p, **a))
        torch_s = median_s(lambda s=scores, p=positions, a=args: topk_torch.select_blocks(s, p, **a))
        results.append(
            {
                "op": "topk_blocks",
                "case": f"{TOP_K} of {num_blocks}, {tokens} tokens",
                "native_us": native_s * 1e6,
                "torch_us": torch_s * 1e6,
                "floor_us": median_s(scores.sum) * 1e6,
                "gb_s": scores.numel() * 4 / native_s * 1e-9,
            }
        )
    return results


def main() -> None:
    """Print a table, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--blocks", type=int, default=256, help="blocks of context")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if cpu_extension.load().module is None:
        raise SystemExit(cpu_extension.load().reason)

    ceiling = ceilings()
    gates = {"sgemm_gflop_s": round(ceiling["sgemm"] * 1e-9, 1), "read_gb_s": round(ceiling["read"] * 1e-9, 1)}
    print(f"{options.threads} threads, sgemm {gates['sgemm_gflop_s']} GFLOP/s, read {gates['read_gb_s']} GB/s")
    print(f"{'case':<42}{'native µs':>11}{'torch µs':>11}{'floor µs':>10}{'× torch':>9}{'of floor':>10}")
    results = score_results(options.blocks, ceiling) + topk_results()
    for r in results:
        r["speedup"], r["share"] = r["torch_us"] / r["native_us"], r["floor_us"] / r["native_us"]
        print(
            f"{r['case']:<42}{r['native_us']:>11.1f}{r['torch_us']:>11.1f}{r['floor_us']:>10.1f}"
            f"{r['speedup']:>9.1f}{r['share']:>10.0%}"
        )
    rounded = [{k: round(v, 3) if isinstance(v, float) else v for k, v in r.items()} for r in results]
    print(json.dumps({"benchmark": "cpu/index_select", "threads": options.threads, **gates, "results": rounded}))


if __name__ == "__main__":
    main()
