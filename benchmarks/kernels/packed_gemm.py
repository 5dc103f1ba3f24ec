"""Products with packed weights at M3.1's shapes, against ceilings and torch's bf16 measured in the same run.

Run on a GPU: python -m benchmarks.kernels.packed_gemm [--sweep] [--tokens 1,64,4096] [--out FILE]

First every case is checked against fp64, then timed: several calls with other experts and other weights are captured in
one CUDA graph, so that no cache serves them, and the median replay counts. Ceilings: bytes a second of a large
reduction, and a bf16 product of 8192³. Shares are of the bytes that must be read (packed bytes of the experts that are
hit, each once) for up to 64 tokens, of the operations for more. --sweep tries block sizes and prints each case's best.
The last line is JSON; --out gets one JSON line a case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.kernels.grouped_peer import GroupedBf16
from benchmarks.kernels.measure import ceilings, time_us
from tamis.kernels.linear import reference as linear_reference
from tamis.kernels.linear import triton as linear_kernel
from tamis.kernels.linear.triton import LinearTiles
from tamis.kernels.moe import reference as moe_reference
from tamis.kernels.moe import triton as moe_kernel
from tamis.kernels.moe.triton import MoETiles
from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight, Weight

HIDDEN, INNER, EXPERTS, TOP_K, LINEAR_N = 6144, 3072, 128, 4, 64 * 128
FACTORS = {"scale": 2.0, "alpha": 1.702, "limit": 7.0}
FORMATS = {"m3.1": ("nvfp4", "mxfp8"), "mxfp8": ("mxfp8", "mxfp8"), "bf16": ("plain", "plain")}
TOKENS = (1, 2, 4, 8, 16, 32, 64, 4096)
MEMORY_BOUND_TOKENS = 64
BOUND = 1e-2


def random_weight(form: str, *shape: int) -> Weight:
    """Random codes under scales of a size that keeps activations near 1."""
    *lead, k = shape
    if form == "plain":
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * k**-0.5
    if form == "mxfp8":
        codes = torch.randint(0, 256, shape, device="cuda", dtype=torch.uint8)
        codes &= 0xBF  # no NaN, magnitudes below 2
        scales = torch.randint(119, 123, (*lead, k // 32), device="cuda", dtype=torch.uint8)
        return MXFP8Weight(codes.view(torch.float8_e4m3fn), scales)
    codes = torch.randint(0, 256, (*lead, k // 2), device="cuda", dtype=torch.uint8)
    scales = torch.randint(0x30, 0x60, (*lead, k // 16), device="cuda", dtype=torch.uint8).view(torch.float8_e4m3fn)
    return NVFP4Weight(codes, scales, torch.full(lead, 0.1 * k**-0.5, device="cuda"))


def num_bytes(weight: Weight) -> int:
    """Bytes of a weight as it lies in memory."""
    return weight.numel() * weight.element_size() if isinstance(weight, Tensor) else weight.num_bytes


class MoESets:
    """Routed experts once, shared experts in three copies, and routings to rotate through."""

    def __init__(self, form: str, experts: int = EXPERTS):
        routed, shared = FORMATS[form]
        self.experts = experts
        self.gate_up = random_weight(routed, experts, 2 * INNER, HIDDEN)
        self.down = random_weight(routed, experts, HIDDEN, INNER)
        self.shared = [
            (random_weight(shared, 2 * INNER, HIDDEN), random_weight(shared, HIDDEN, INNER)) for _ in range(3)
        ]

    def inputs(self, tokens: int, turn: int) -> dict[str, Any]:
        """A fresh routing and fresh activations."""
        generator = torch.Generator("cuda").manual_seed(1000 * tokens + turn)
        ids = torch.rand(tokens, self.experts, device="cuda", generator=generator).topk(TOP_K, dim=-1).indices
        weights = torch.rand(tokens, TOP_K, device="cuda", generator=generator) + 0.1
        shared_gate_up, shared_down = self.shared[turn % 3]
        return {
            "x": torch.randn(tokens, HIDDEN, device="cuda", generator=generator).bfloat16(),
            "expert_ids": ids,
            "weights": weights / weights.sum(-1, keepdim=True),
            "gate_up": self.gate_up,
            "down": self.down,
            "shared_gate_up": shared_gate_up,
            "shared_down": shared_down,
        }

    def bytes_read(self, inputs: dict[str, Any]) -> float:
        """Packed bytes of the experts that are hit, and of the shared one."""
        hit = len(inputs["expert_ids"].unique())
        one = (num_bytes(self.gate_up) + num_bytes(self.down)) / self.experts
        return hit * one + num_bytes(self.shared[0][0]) + num_bytes(self.shared[0][1])


def moe_operations(tokens: int) -> float:
    """Floating-point operations of the mixture."""
    return 2.0 * tokens * (TOP_K + 1) * 3 * HIDDEN * INNER


def relative_error(got: Tensor, want: Tensor) -> float:
    """Frobenius."""
    return float((got.double() - want).norm() / want.norm())


def check_moe(sets: MoESets, tokens: int, config: MoETiles | None) -> float:
    """Error of three tokens out of `tokens` against fp64."""
    inputs = sets.inputs(tokens, 0)
    got = moe_kernel.moe(**inputs, **FACTORS, config=config)
    few = torch.randperm(tokens)[:3].tolist()
    part = {**inputs, **{name: inputs[name][few] for name in ("x", "expert_ids", "weights")}}
    return relative_error(got[few], moe_reference.moe(**part, **FACTORS))


def moe_configs(tokens: int, form: str) -> Iterator[MoETiles]:
    """Block sizes that a sweep tries; the first is the one in use."""
    yield moe_kernel.tiles(tokens, FORMATS[form])
    if tokens <= MEMORY_BOUND_TOKENS:
        # A narrow shared tile leaves room for more programs a processor, and reads the shared weights more often.
        for shared_m in sorted({16, min(32, triton.next_power_of_2(max(16, tokens)))}):
            for phase in (True, False):
                for n, k, warps, stages in (
                    (64, 128, 4, 2), (64, 128, 4, 3), (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 2),
                    (64, 256, 4, 3), (64, 256, 4, 4), (128, 128, 8, 3), (128, 128, 8, 4), (128, 128, 4, 3),
                    (128, 256, 8, 2),
                ):  # fmt: skip
                    yield MoETiles(n, 16, 16, shared_m, k, phase, warps, stages)
    else:
        for n, m, remainder, shared_m, warps, stages in (
            (128, 128, 32, 128, 8, 2), (128, 128, 32, 128, 4, 3), (128, 128, 32, 128, 4, 2), (128, 128, 32, 256, 8, 2),
            (256, 128, 32, 128, 8, 2), (256, 128, 32, 128, 8, 3), (64, 128, 32, 128, 4, 3), (64, 128, 32, 256, 4, 2),
        ):  # fmt: skip
            yield MoETiles(n, m, remainder, shared_m, 128, True, warps, stages)


def linear_configs(tokens: int) -> Iterator[LinearTiles]:
    """See `moe_configs`."""
    yield linear_kernel.tiles(tokens)
    m = max(16, triton.next_power_of_2(tokens))
    if tokens <= MEMORY_BOUND_TOKENS:
        for n, k, warps, stages in ((64, 128, 4, 6), (64, 128, 4, 4), (64, 256, 4, 3), (64, 512, 4, 3)):
            yield LinearTiles(n, m, k, False, warps, stages)
        yield LinearTiles(64, m, 256, True, 4, 4)
    else:
        for n, m, warps, stages in (
            (128, 128, 8, 2), (128, 128, 4, 3), (128, 128, 4, 2), (128, 256, 8, 2), (256, 128, 8, 2), (256, 128, 8, 3),
            (64, 256, 4, 2), (64, 128, 4, 3),
        ):  # fmt: skip
            yield LinearTiles(n, m, 128, True, warps, stages)


def attempt(call: Callable[[], float], what: str) -> float:
    """The call's number; infinite where these block sizes do not fit this card."""
    try:
        return call()
    except triton.runtime.errors.OutOfResources as error:
        print(f"  {what}: {error}", flush=True)
        return math.inf


class Report:
    """Lines of the table, and of the JSON file."""

    def __init__(self, limits: dict[str, float]):
        self.limits = limits
        self.lines: list[dict[str, Any]] = []

    def add(self, what: str, form: str, tokens: int, us: float, moved: float, operations: float, **more: Any) -> None:
        """One case: share of the read ceiling for few tokens, of the bf16 one for many."""
        memory = tokens <= MEMORY_BOUND_TOKENS
        share = (moved / self.limits["read"] if memory else operations / self.limits["bf16"]) / (us * 1e-6)
        line: dict[str, Any] = {"what": what, "format": form, "tokens": tokens, "us": round(us, 1)}
        line |= {"GB/s": round(moved / us / 1e3)} if memory else {"TFLOP/s": round(operations / us / 1e6, 1)}
        line |= {"share of ceiling": round(share, 3), **more, "device": torch.cuda.get_device_name()}
        self.lines.append(line)
        peer = f"  bf16 {more['bf16_us']:8.1f} us" if more.get("bf16_us") else ""
        print(
            f"{what:7} {form:6} {tokens:5} tokens {us:9.1f} us  {share:6.1%} of {'read' if memory else 'bf16'}{peer}",
            flush=True,
        )


def best_moe(sets: MoESets, form: str, tokens: int, sweep: bool) -> tuple[float, MoETiles]:
    """Fastest block sizes and their microseconds; without a sweep those in use."""
    turns = [sets.inputs(tokens, turn) for turn in range(6 if tokens <= MEMORY_BOUND_TOKENS else 3)]
    results = []
    for config in list(moe_configs(tokens, form))[: None if sweep else 1]:
        calls = [lambda t=t, c=config: moe_kernel.moe(**t, **FACTORS, config=c) for t in turns]
        us = attempt(lambda calls=calls: time_us(calls), str(config))
        if sweep:
            print(f"  {astuple(config)} {us:.1f} us", flush=True)
        results.append((us, config))
    return min(results, key=lambda r: r[0])


def run_moe(form: str, tokens: list[int], sweep: bool, report: Report) -> None:
    """The mixture in one format."""
    sets = MoESets(form)
    peer = GroupedBf16(sets.gate_up, sets.down, sets.shared) if form == "m3.1" else None
    for count in tokens:
        error = check_moe(sets, count, None)
        if not error < BOUND:
            raise SystemExit(f"moe {form}, {count} tokens: relative error {error} is not below {BOUND}")
        us, config = best_moe(sets, form, count, sweep)
        turns = [sets.inputs(count, turn) for turn in range(3)]
        bf16 = time_us([lambda t=t: peer(**t, **FACTORS) for t in turns]) if peer else None
        moved = sum(sets.bytes_read(t) for t in turns) / len(turns)
        shape = f"{EXPERTS} experts, top {TOP_K}, {HIDDEN}x{INNER}, shared {INNER}"
        report.add(
            "moe", form, count, us, moved, moe_operations(count), shape=shape, tiles=astuple(config),
            error=round(error, 5), bf16_us=bf16 and round(bf16, 1),
        )  # fmt: skip


def run_linear(form: str, tokens: list[int], sweep: bool, report: Report) -> None:
    """One linear layer in one format."""
    weights = [random_weight(form, LINEAR_N, HIDDEN) for _ in range(6)]
    plain = [w.dequantize(torch.bfloat16) for w in weights]
    for count in tokens:
        x = torch.randn(count, HIDDEN, device="cuda").bfloat16()
        few = x[:: max(1, count // 16)]
        error = relative_error(
            linear_kernel.linear(x, weights[0])[:: max(1, count // 16)], linear_reference.linear(few, weights[0])
        )
        if not error < BOUND:
            raise SystemExit(f"linear {form}, {count} tokens: relative error {error} is not below {BOUND}")
        results = []
        for config in list(linear_configs(count))[: None if sweep else 1]:
            calls = [lambda x=x, w=w, c=config: linear_kernel.linear(x, w, c) for w in weights]
            us = attempt(lambda calls=calls: time_us(calls), str(config))
            if sweep:
                print(f"  {astuple(config)} {us:.1f} us", flush=True)
            results.append((us, config))
        us, config = min(results, key=lambda r: r[0])
        bf16 = time_us([lambda x=x, w=w: torch.nn.functional.linear(x, w) for w in plain])
        report.add(
            "linear", form, count, us, num_bytes(weights[0]), 2.0 * count * LINEAR_N * HIDDEN,
            shape=f"{HIDDEN}->{LINEAR_N}", tiles=astuple(config), error=round(error, 5), bf16_us=round(bf16, 1),
        )  # fmt: skip


def compile_share(share: int, shares: int, tokens: list[int], formats: list[str], only: str | None) -> None:
    """Compiles every `shares`-th case of a sweep into Triton's cache by running it with four experts."""
    jobs: list[tuple[str, int, Any]] = []
    for count in tokens:
        if only != "linear":
            jobs += [(form, count, c) for form in formats for c in moe_configs(count, form)]
        if only != "moe":
            jobs += [(f"linear {form}", count, c) for form in ("mxfp8", "nvfp4") for c in linear_configs(count)]
    for form, count, config in jobs[share::shares]:
        try:
            if form.startswith("linear"):
                weight = random_weight(form.split()[1], LINEAR_N, HIDDEN)
                linear_kernel.linear(torch.randn(count, HIDDEN, device="cuda").bfloat16(), weight, config)
            else:
                moe_kernel.moe(**MoESets(form, 4).inputs(count, 0), **FACTORS, config=config)
        except triton.runtime.errors.OutOfResources:
            continue


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--only", choices=("linear", "moe"), help="leave the other out")
    parser.add_argument("--out")
    parser.add_argument("--compiled", action="store_true", help="with --sweep: Triton's cache has every kernel already")
    parser.add_argument("--compile-share", help=argparse.SUPPRESS)
    args = parser.parse_args()
    tokens = [int(t) for t in args.tokens.split(",")]
    if args.compile_share:
        share, shares = map(int, args.compile_share.split("/"))
        return compile_share(share, shares, tokens, args.formats.split(","), args.only)
    if args.sweep and not args.compiled:
        jobs = min(12, os.cpu_count() or 1)
        command = [
            sys.executable,
            "-m",
            "benchmarks.kernels.packed_gemm",
            "--tokens",
            args.tokens,
            "--formats",
            args.formats,
            *(("--only", args.only) if args.only else ()),
        ]
        workers = [subprocess.Popen([*command, "--compile-share", f"{i}/{jobs}"]) for i in range(jobs)]
        if any([worker.wait() for worker in workers]):
            print("some block sizes did not compile; see above")
    limits = ceilings()
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}"
    print(f"{card}: read {limits['read'] / 1e12:.2f} TB/s, bf16 8192^3 {limits['bf16'] / 1e12:.0f} TFLOP/s", flush=True)
    report = Report(limits)
    for form in ("mxfp8", "nvfp4") if args.only != "moe" else ():
        run_linear(form, tokens, args.sweep, report)
    for form in args.formats.split(",") if args.only != "linear" else ():
        run_moe(form, tokens, args.sweep, report)
    if args.out:
        with open(args.out, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in report.lines)
    shares = {f"{i['what']} {i['format']} {i['tokens']}": i["share of ceiling"] for i in report.lines}
    print(
        json.dumps({"card": card, "read_TB/s": limits["read"] / 1e12, "bf16_TFLOP/s": limits["bf16"] / 1e12, **shares})
    )


if __name__ == "__main__":
    main()
