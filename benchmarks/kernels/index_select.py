"""Index scoring and exact top-k at M3's shapes, against ceilings measured in the same run.

Run on a GPU: python -m benchmarks.kernels.index_select [--sweep] [--only WORD] [--row-bytes N] [--out FILE]

Small cases are checked against fp64 and the reference selection first. Then each shape is timed: calls on several
layers' lanes, so that no cache serves them where they do not fit into it anyway, are captured in one CUDA graph, and
the median replay counts. Shares are of the read ceiling (a large reduction) for decode, on the bytes of keys, and for
top-k, on the bytes of scores; of the matmul ceiling (bf16, 8192³) for prefill, on the operations of visible keys.
--sweep tries tiles; --only keeps the cases with a word in their name; --row-bytes is the distance of blocks in the
pool, 1,822,720 being M3.1's row. One JSON line a result, as soon as it is known; the last one sums up.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.kernels.measure import ceilings, time_us
from tamis.kernels.index_score import triton as score_kernel
from tamis.kernels.index_score.triton import ScoreTiles
from tamis.kernels.lane import Lane
from tamis.kernels.topk_blocks import triton as topk_kernel
from tests.kernels.index_cases import DECODE, PREFILL, TOPK, Requests, TopK, score_error, wrong_step_rows

HEADS, DIM, TOP_K = 4, 128, 16
FORMATS = ("nvfp4 e4m3", "nvfp4", "bfloat16", "fp8")
KEY_BYTES = {"nvfp4 e4m3": 72, "nvfp4": 72, "bfloat16": 256, "fp8": 128}
# requests, tokens each, context; what vLLM 0.32's Triton kernels take on an H200 (bf16 keys) for scores, with top-k.
DECODE_SHAPES = {
    (1, 1, 1 << 20): (76.9, 89.1),
    (1, 8, 1 << 20): (82.0, 110.1),
    (8, 1, 1 << 17): (75.6, 96.6),
    (8, 8, 1 << 17): (81.0, 121.1),
    (32, 1, 1 << 17): (249.3, 269.6),
    (32, 8, 1 << 17): (265.7, 347.6),
}
# tokens, context: the same for prefill, scores and top-k.
PREFILL_SHAPES = {(8192, 1 << 13): (132, 49), (8192, 1 << 16): (1365, 414), (8192, 1 << 17): (2817, 835)}
TOPK_SHAPES = ((8192, 64), (8192, 512), (8192, 1024), (2048, 8192), (1, 8192), (32, 1024), (256, 1024))
BOUND = 5e-6


class Report:
    """Lines as they come, and at last their sum."""

    def __init__(self, path: str | None):
        self.start = time.time()
        self.path = Path(path) if path else None
        if self.path:
            self.path.write_text("")
        self.shares: dict[str, Any] = {}

    def line(self, name: str, **values: Any) -> None:
        """One JSON line."""
        rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
        text = json.dumps({"case": name, **rounded, "at_s": round(time.time() - self.start, 1)}, default=str)
        print(text, flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(text + "\n")
        for key in ("share", "error", "wrong", "failed"):
            if key in rounded:
                self.shares[name] = rounded[key]

    def attempt(self, name: str, case: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A case's values as a line; its exception, if it raises one."""
        try:
            values = case()
        except Exception as error:
            values = {"failed": f"{type(error).__name__}: {error}"[:300]}
            traceback.print_exc()
        self.line(name, **values)
        return values


class Pool:
    """Lanes of one format with random keys, side by side in rows."""

    def __init__(self, keys: str, num_blocks: int, lanes: int, row_bytes: int | None = None):
        lane_bytes = KEY_BYTES[keys] * 128
        rows = torch.empty(num_blocks, row_bytes or lanes * lane_bytes, dtype=torch.uint8, device="cuda")
        self.lanes = []
        for i in range(lanes):
            part = rows[:, i * lane_bytes : (i + 1) * lane_bytes]
            if keys == "bfloat16":
                part.copy_(torch.randn(num_blocks, 128 * DIM, device="cuda").bfloat16().view(torch.uint8))
                self.lanes.append(Lane("bfloat16", part.view(torch.bfloat16).unflatten(1, (1, 128, DIM))))
                continue
            part.copy_(torch.randint(0, 256, part.shape, dtype=torch.uint8, device="cuda"))
            if keys == "fp8":
                part &= 0xBF
                self.lanes.append(Lane("fp8", part.view(torch.float8_e4m3fn).unflatten(1, (1, 128, DIM))))
                continue
            scales = part[:, 8192:]
            scales &= 0x1F
            scales += 0x20
            self.lanes.append(
                Lane(
                    "nvfp4",
                    part[:, :8192].unflatten(1, (1, 128, 64)),
                    scales.view(torch.float8_e4m3fn).unflatten(1, (1, 128, 8)),
                    "e4m3" if keys == "nvfp4 e4m3" else "exact",
                )
            )


def decode_configs(rows: int, requests: int, blocks: int, format: str) -> Iterator[ScoreTiles]:
    """Tiles that a sweep tries; the first is the one in use."""
    used = score_kernel.decode_tiles(rows, requests, blocks, format)
    yield used
    for chunk, warps, stages in ((4, 4, 6), (8, 4, 4), (8, 4, 6), (16, 4, 4), (32, 4, 6), (32, 4, 8)):
        yield ScoreTiles(used.rows, chunk, True, True, warps, stages)


def prefill_configs(rows: int, blocks: int) -> Iterator[ScoreTiles]:
    """See `decode_configs`."""
    yield score_kernel.prefill_tiles(rows, blocks)
    for tile, chunk, keys_first, warps, stages in (
        (128, 64, False, 4, 2), (128, 32, False, 4, 4), (128, 64, True, 4, 4), (128, 64, False, 8, 4),
        (256, 64, False, 8, 4), (64, 64, False, 4, 4),
    ):  # fmt: skip
        yield ScoreTiles(tile, chunk, keys_first, False, warps, stages)


def fastest(
    configs: Iterator[ScoreTiles], calls: Callable[[ScoreTiles], list[Callable[[], object]]], sweep: bool
) -> tuple[float, ScoreTiles]:
    """Microseconds and tiles; without a sweep those in use."""
    results = []
    for config in configs:
        try:
            us = time_us(calls(config))
        except (triton.runtime.errors.OutOfResources, RuntimeError) as error:
            print(f"  {astuple(config)}: {error}"[:200], flush=True)
            continue
        results.append((us, config))
        if not sweep:
            break
        print(f"  {astuple(config)} {us:.1f} us", flush=True)
    return min(results, key=lambda r: r[0])


def scratch(tokens: int, blocks: int) -> Tensor:
    """Room for scores."""
    return torch.empty(tokens, HEADS, blocks, device="cuda")


def run_decode(
    keys: str, shape: tuple[int, int, int], limits: dict[str, float], sweep: bool, row_bytes: int | None
) -> dict[str, Any]:
    """One decode shape in one format, and what follows it."""
    requests, tokens, context = shape
    blocks = context // 128
    pool = Pool(keys, requests * blocks, 1 if row_bytes else 3, row_bytes)
    tables = torch.randperm(requests * blocks, device="cuda").view(requests, blocks)
    starts = torch.arange(requests + 1, device="cuda") * tokens
    positions = (context - tokens + torch.arange(tokens, device="cuda")).repeat(requests)
    q = torch.randn(requests * tokens, HEADS, DIM, device="cuda").bfloat16()
    out = scratch(requests * tokens, blocks)

    def calls(config: ScoreTiles) -> list[Callable[[], object]]:
        return [
            lambda lane=lane: score_kernel.decode_scores(
                q, lane, tables, starts, positions, out, max_tokens=tokens, config=config
            )
            for lane in pool.lanes
        ]

    us, config = fastest(decode_configs(tokens * HEADS, requests, blocks, pool.lanes[0].format), calls, sweep)
    moved = requests * context * KEY_BYTES[keys]
    select = time_us([lambda: topk_kernel.select_blocks(out, positions, k=TOP_K, init=0, local=1)])
    theirs, with_topk = DECODE_SHAPES[shape]
    return {
        "us": us, "share": moved / limits["read"] / (us * 1e-6), "topk_us": select, "vllm_over_ours": theirs / us,
        "with_topk_vllm_over_ours": with_topk / (us + select), "tiles": astuple(config),
    }  # fmt: skip


def run_prefill(keys: str, shape: tuple[int, int], limits: dict[str, float], sweep: bool) -> dict[str, Any]:
    """One prefill chunk in one format, and the selection of its scores."""
    tokens, context = shape
    blocks = context // 128
    pool = Pool(keys, blocks, 1)
    table = torch.randperm(blocks, device="cuda")
    positions = context - tokens + torch.arange(tokens, device="cuda")
    q = torch.randn(tokens, HEADS, DIM, device="cuda").bfloat16()
    out = scratch(tokens, blocks)

    def calls(config: ScoreTiles) -> list[Callable[[], object]]:
        return [lambda: score_kernel.prefill_scores(q, pool.lanes[0], table, positions, out, config)]

    us, config = fastest(prefill_configs(tokens * HEADS, blocks), calls, sweep)
    operations = 2.0 * DIM * HEADS * float((positions + 1).sum())
    select = time_us([lambda: topk_kernel.select_blocks(out, positions, k=TOP_K, init=0, local=1)])
    theirs, their_topk = PREFILL_SHAPES[shape]
    read = 4.0 * HEADS * float((positions // 128 + 1).sum())
    return {
        "us": us, "TFLOP/s": operations / us / 1e6, "share": operations / limits["bf16"] / (us * 1e-6),
        "vllm_over_ours": theirs / us, "topk_us": select, "topk_share": read / limits["read"] / (select * 1e-6),
        "topk_vllm_over_ours": their_topk / select, "tiles": astuple(config),
    }  # fmt: skip


def run_topk(tokens: int, blocks: int, limits: dict[str, float], kind: str) -> dict[str, Any]:
    """Selection alone, all blocks visible."""
    if kind == "drawn":
        scores = torch.randn(tokens, HEADS, blocks, device="cuda")
    else:  # neighbours alike, as a model's scores are, or all equal: the most steps that bisection takes
        scores = torch.randn(tokens, HEADS, blocks, device="cuda").cumsum(-1) if kind == "walk" else None
        scores = torch.zeros(tokens, HEADS, blocks, device="cuda") if scores is None else scores
    positions = torch.full((tokens,), blocks * 128 - 1, device="cuda")
    us = time_us([lambda: topk_kernel.select_blocks(scores, positions, k=TOP_K, init=0, local=1)])
    peer = None
    if tokens * blocks <= 1 << 22:
        peer = time_us([lambda: scores.topk(TOP_K, dim=-1)])
    return {"us": us, "share": scores.nbytes / limits["read"] / (us * 1e-6), "torch_topk_us": peer}


def check(report: Report, only: str) -> None:
    """Small cases against fp64 and the reference; nothing is timed that is wrong."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty returns NaN
    for keys in FORMATS:
        if only not in keys:
            continue
        for way, cases in (("decode", DECODE), ("prefill", PREFILL)):
            # tests/gpu has every case in every format; compiling them all would take longer than the times.
            for name, (shape, config) in list(cases.items())[: None if keys.startswith("nvfp4") else 1]:

                def case(way=way, shape=shape, config=config, keys=keys) -> dict[str, Any]:
                    requests = Requests(keys, **shape, device="cuda", seed=1)
                    got = requests.decode(config) if way == "decode" else requests.prefill(config)
                    return {"error": score_error(got, requests.expected(), requests.positions)}

                report.attempt(f"check {keys} {way} {name}", case)
        report.attempt(f"check step {keys}", lambda keys=keys: {"wrong": wrong_step_rows(keys, 256 << 20, "cuda")})
    cases = [*TOPK.values(), *(TopK(n, tokens=9, kind=kind) for n in (4097, 16384) for kind in ("normal", "special"))]
    report.attempt("check top-k", lambda: {"wrong": sum(case.wrong_rows("cuda") for case in cases)})
    torch.use_deterministic_algorithms(False)
    bad = {
        name: value for name, value in report.shares.items() if not isinstance(value, (int, float)) or not value < BOUND
    }
    if bad:
        report.line("checks failed, times are of wrong results", failed=bad)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--row-bytes", type=int)
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    report = Report(args.out)
    if not args.no_check:
        check(report, args.only if args.only in FORMATS else "")
    limits = ceilings()
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}"
    report.line("ceilings", card=card, read_TB_s=limits["read"] / 1e12, bf16_TFLOP_s=limits["bf16"] / 1e12)

    few_decode, few_prefill = [(1, 8, 1 << 20), (32, 1, 1 << 17)], [(8192, 1 << 16)]
    cases: list[tuple[str, Callable[[], dict[str, Any]]]] = []
    for keys in FORMATS:
        packed = keys.startswith("nvfp4")
        for shape in DECODE_SHAPES if packed else few_decode:
            name = f"decode {keys} {shape[0]}x{shape[1]}@{shape[2] // 1024}K"
            cases.append((name, lambda k=keys, s=shape: run_decode(k, s, limits, args.sweep, args.row_bytes)))
        for chunk in PREFILL_SHAPES if packed else few_prefill:
            name = f"prefill {keys} {chunk[0]}@{chunk[1] // 1024}K"
            cases.append((name, lambda k=keys, s=chunk: run_prefill(k, s, limits, args.sweep)))
    for tokens, blocks in TOPK_SHAPES:
        for kind in ("drawn", "walk", "equal") if blocks == 1024 else ("drawn",):
            name = f"topk {kind} {tokens}x{HEADS}x{blocks}"
            cases.append((name, lambda t=tokens, b=blocks, k=kind: run_topk(t, b, limits, k)))
    for name, case in cases:
        if args.only in name:
            report.attempt(name, case)
    print(json.dumps({"card": card, **limits, **report.shares}, default=str), flush=True)


if __name__ == "__main__":
    main()
