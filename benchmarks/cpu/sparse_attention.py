"""Native sparse attention beside the torch path and this machine's own ceilings; JSON last.

    python -m benchmarks.cpu.sparse_attention [--threads N]

Each case is checked against the torch path before it is timed. Ceilings are measured: a square fp32 matrix product
(FLOPs) and a sum over 256 MiB (bytes), each at its fastest run, since other work on the machine only slows it. A
case's floor is the larger of FLOPs ÷ the one and packed bytes that have to be read at least once ÷ the other.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch

from benchmarks.cpu.measure import ceilings, times_s
from tamis.kernels.lane import Lane, encode
from tamis.kernels.sparse_attention import cpu, native

BLOCKS, KV_HEADS, SLOTS, DIM = 64, 2, 16, 128


def lane(format: str, generator: torch.Generator) -> Lane:
    codes, scales = encode(torch.randn(BLOCKS, KV_HEADS, 128, DIM, generator=generator), format)
    return Lane(format, codes, scales)


def selections(tokens: int, generator: torch.Generator) -> torch.Tensor:
    """Each token's own block and random ones of the rest, ascending."""
    scores = torch.rand(tokens, KV_HEADS, BLOCKS - 1, generator=generator)
    others = scores.topk(SLOTS - 1).indices.sort().values
    return torch.cat([others, torch.full((tokens, KV_HEADS, 1), BLOCKS - 1)], -1)


def measure(format: str, tokens: int, group: int, gflops: float, gbytes: float) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    k_lane, v_lane = lane(format, generator), lane(format, generator)
    q = torch.randn(tokens, KV_HEADS * group, DIM, generator=generator)
    selection = selections(tokens, generator)
    tables = torch.arange(BLOCKS).expand(tokens, -1)
    positions = BLOCKS * 128 - 1 - torch.arange(tokens).flip(0) % 128
    args = (q, k_lane, v_lane, selection, tables, positions, DIM**-0.5)
    torch.testing.assert_close(native.sparse_attention(*args), cpu.sparse_attention(*args), rtol=1e-4, atol=1e-4)

    native_runs = [1e3 * s for s in times_s(lambda: native.sparse_attention(*args))]
    torch_runs = [1e3 * s for s in times_s(lambda: cpu.sparse_attention(*args))]
    best_ms = min(native_runs)
    flops = 4 * tokens * KV_HEADS * group * SLOTS * 128 * DIM
    distinct = sum(len(selection[:, h].unique()) for h in range(KV_HEADS))
    row_bytes = {"float32": 4 * DIM, "bfloat16": 2 * DIM, "fp8": DIM, "nvfp4": DIM // 2 + DIM // 16}[format]
    read = distinct * 2 * 128 * row_bytes
    floor_ms = max(flops / gflops, read / gbytes) / 1e6
    return {
        "format": format,
        "tokens": tokens,
        "group": group,
        "native_ms": round(statistics.median(native_runs), 3),
        "native_best_ms": round(best_ms, 3),
        "torch_ms": round(statistics.median(torch_runs), 3),
        "torch_best_ms": round(min(torch_runs), 3),
        "floor_ms": round(floor_ms, 3),
        "gflops": round(flops / best_ms / 1e6, 1),
        "gbytes": round(read / best_ms / 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    gflops, gbytes = (value * 1e-9 for value in ceilings().values())
    print(f"{threads} threads; matrix product {gflops:.1f} GFLOP/s, read {gbytes:.1f} GB/s")
    columns = ("format", "tokens", "group")
    columns += ("native_ms", "native_best_ms", "torch_ms", "torch_best_ms", "floor_ms", "gflops")
    print(" ".join(columns))
    cases = []
    for format in ("bfloat16", "nvfp4"):
        for tokens, group in ((1, 4), (8, 4), (256, 4), (1, 16), (256, 16)):
            c = measure(format, tokens, group, gflops, gbytes)
            cases.append(c)
            print(" ".join(f"{c[name]!s:>{len(name)}}" for name in columns))
    print(
        json.dumps(
            {
                "benchmark": "cpu/sparse_attention",
                "threads": threads,
                "gemm_gflops": round(gflops, 1),
                "read_gbytes": round(gbytes, 1),
                "cases": cases,
            }
        )
    )


if __name__ == "__main__":
    main()
