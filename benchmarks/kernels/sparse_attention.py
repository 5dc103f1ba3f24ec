"""Sparse attention at M3's shape (64 query and 4 KV heads of 128, 16 blocks of 128 tokens), in decode and prefill.

Run on a GPU: python -m benchmarks.kernels.sparse_attention [--sweep] [--only decode|prefill] [--out FILE]

First every way and format is checked against fp64 on odd sizes, then each timed case on three of its tokens, and all
ways against each other, bit by bit. Then it is timed: calls with different selections, enough of them that the L2 cache
serves none, are captured in one CUDA graph, and the median replay counts.

Selections: "random" draws every token's blocks anew; "alike" gives a token its neighbour's blocks, each replaced with a
chance of 10% (decode: the tokens of a request; prefill: 10% from one token to the next, within runs of 64). A token's
own block is always among them.

Shares: bytes that must move (each block that any token of a request selected, once a KV head; queries and outputs
count as nothing) against the read bandwidth of a large reduction, and operations (4 · 64 · 128 for every visible key
of every token) against a bf16 product of 8192³, both measured in the same run. One JSON line a result, as soon as it
is known; the last line sums up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.kernels.measure import ceilings, time_us
from tamis.kernels.lane import Lane
from tamis.kernels.sparse_attention import reference
from tamis.kernels.sparse_attention import triton as kernels
from tamis.kernels.sparse_attention.triton import OuterWay, QueryWay, Way
from tests.kernels.sparse_attention_cases import LANES, WAYS, Case, inputs, relative_error

KV_HEADS, GROUP, SLOTS, DIM = 4, 16, 16, 128
SCALE = DIM**-0.5
BOUND = 1e-2
L2_BYTES = 150e6
# batch, tokens a request, context
DECODE = (
    (1, 1, 1 << 20), (1, 8, 1 << 20), (8, 1, 1 << 17), (8, 8, 1 << 17), (32, 1, 1 << 17), (32, 8, 1 << 17),
)  # fmt: skip
PREFILL = (1 << 13, 1 << 16, 1 << 17)
PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class Pool:
    """Lanes of one layer over rows of random bytes."""

    k_lane: Lane
    v_lane: Lane
    bytes_per_key: float


def pool(format: str, contract: str, num_blocks: int) -> Pool:
    """Random finite codes under scales near 1, K and V side by side in each row."""
    codes_bytes = KV_HEADS * 128 * DIM * {"nvfp4": 4, "fp8": 8, "bfloat16": 16}[format] // 8
    scales_bytes = KV_HEADS * 128 * DIM // 16 if format == "nvfp4" else 0
    row = 2 * (codes_bytes + scales_bytes)
    lanes = []
    rows = torch.randint(0, 256, (num_blocks, row), dtype=torch.uint8, device="cuda")
    for at in (0, codes_bytes + scales_bytes):
        codes = rows[:, at : at + codes_bytes]
        scales = None
        if format == "nvfp4":
            scales = rows[:, at + codes_bytes : at + codes_bytes + scales_bytes]
            scales.bitwise_and_(7).bitwise_or_(0x30)
            scales = scales.view(torch.float8_e4m3fn).view(num_blocks, KV_HEADS, 128, -1)
        elif format == "fp8":
            codes.bitwise_and_(0xBF)
            codes = codes.view(torch.float8_e4m3fn)
        else:
            codes = codes.view(torch.bfloat16)
            codes.copy_(torch.randn(codes.shape, device="cuda", dtype=torch.bfloat16))
        lanes.append(Lane(format, codes.view(num_blocks, KV_HEADS, 128, -1), scales, contract))
    return Pool(lanes[0], lanes[1], (codes_bytes + scales_bytes) * 2 / (KV_HEADS * 128))


def decode_inputs(batch: int, tokens: int, context: int, alike: bool, seed: int) -> dict[str, Any]:
    """The last `tokens` positions of `batch` requests, each with blocks of its own."""
    generator = torch.Generator("cuda").manual_seed(seed)
    blocks = context // 128
    selection = torch.empty(batch, tokens, KV_HEADS, SLOTS, dtype=torch.int64, device="cuda")
    positions = context - tokens + torch.arange(tokens, device="cuda").expand(batch, -1)

    def draw() -> Tensor:
        scores = torch.rand(batch, KV_HEADS, blocks - 1, device="cuda", generator=generator)
        return scores.topk(SLOTS - 1, dim=-1).indices

    chosen = draw()
    for token in range(tokens):
        if token and alike:
            changed = torch.rand(chosen.shape, device="cuda", generator=generator) < 0.1
            fresh = draw()
            taken = (fresh[..., None] == chosen[..., None, :]).any(-1)
            chosen = torch.where(changed & ~taken, fresh, chosen)
        elif token:
            chosen = draw()
        selection[:, token, :, :-1] = chosen
    selection[..., -1] = positions[:, :, None] // 128
    tables = torch.randperm(batch * blocks, device="cuda", generator=generator).view(batch, blocks)
    q = torch.randn(batch * tokens, KV_HEADS * GROUP, DIM, device="cuda", generator=generator).bfloat16()
    return {
        "q": q,
        "selection": selection.sort(-1).values.flatten(0, 1),
        "block_tables": tables.repeat_interleave(tokens, 0),
        "positions": positions.flatten(),
        "neighbours": tokens,
    }


def prefill_inputs(context: int, alike: bool, seed: int) -> dict[str, Any]:
    """The last 8,192 positions of one request."""
    generator = torch.Generator("cuda").manual_seed(seed)
    blocks = context // 128
    positions = torch.arange(context - PREFILL_TOKENS, context, device="cuda")
    own = (positions // 128)[:, None, None]
    runs = 64 if alike else 1
    shape = (PREFILL_TOKENS // runs, KV_HEADS, blocks)
    scores = torch.rand(shape, device="cuda", generator=generator).repeat_interleave(runs, 0)
    if alike:
        # Each step of a run redraws a tenth of the scores, so a tenth of the choice.
        steps = torch.rand(scores.shape, device="cuda", generator=generator) < 0.1
        run = torch.arange(PREFILL_TOKENS, device="cuda").view(-1, 1, 1)
        last = torch.where(steps & (run % runs > 0), run, run // runs * runs).cummax(0).values
        fresh = torch.rand(scores.shape, device="cuda", generator=generator)
        scores = fresh.gather(0, last)
        del steps, last, fresh
    block = torch.arange(blocks, device="cuda")
    scores = scores.masked_fill(block > own, -1.0).masked_fill(block == own, 2.0)
    best = scores.topk(min(SLOTS, blocks), dim=-1)
    chosen = torch.where(best.values >= 0.0, best.indices, blocks).sort(-1).values
    selection = torch.full((PREFILL_TOKENS, KV_HEADS, SLOTS), -1, dtype=torch.int64, device="cuda")
    selection[..., : chosen.shape[-1]] = torch.where(chosen < blocks, chosen, -1)
    table = torch.randperm(blocks, device="cuda", generator=generator)
    q = torch.randn(PREFILL_TOKENS, KV_HEADS * GROUP, DIM, device="cuda", generator=generator).bfloat16()
    return {
        "q": q,
        "selection": selection,
        "block_tables": table.expand(PREFILL_TOKENS, -1),
        "positions": positions,
        "neighbours": PREFILL_TOKENS,
    }


def keys_read(call: dict[str, Any], tokens: int) -> int:
    """Keys of the blocks that any of a request's `tokens` tokens selected, over KV heads and requests."""
    selection = call["selection"].view(-1, tokens, KV_HEADS, SLOTS).permute(0, 2, 1, 3).flatten(2)
    ordered = selection.sort(-1).values
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return int((first & (ordered >= 0)).sum()) * 128


def operations(call: dict[str, Any]) -> float:
    """Multiplications and additions of both products over visible keys."""
    visible = (call["positions"][:, None, None] - call["selection"] * 128 + 1).clamp(max=128)
    return 4.0 * GROUP * DIM * float(visible[call["selection"] >= 0].sum())


def spelled(way: Way) -> list[Any]:
    """A way in JSON."""
    return [type(way).__name__, *astuple(way)]


def say(**line: Any) -> dict[str, Any]:
    """Prints a JSON line."""
    print(json.dumps(line), flush=True)
    return line


def attempt(what: str, action: Callable[[], Any]) -> Any:
    """The action's result; None, and a line that says why, where it fails."""
    try:
        return action()
    except Exception as error:
        say(failed=what, why=f"{type(error).__name__}: {error}"[:600], where=traceback.format_exc(limit=-2)[-400:])
        return None


def odd_sizes() -> list[Case]:
    """Cases of every format, random and alike."""
    return [
        Case(format, contract, (2600, 129, 1, 5000), 9, group=group, kv_heads=4, slots=16, alike=group == 2)
        for format, contract in LANES
        for group in (16, 2)
    ]


def compile_share(share: int, shares: int, contracts: list[str], sweep: bool) -> None:
    """Compiles every `shares`-th kernel into Triton's cache by running it on little."""
    jobs: list[tuple[Case | str, Way]] = [(case, way) for case in odd_sizes() for way in WAYS]
    for contract in contracts:
        ways = {kernels.way(tokens) for batch, tokens, _ in DECODE}
        ways |= {*decode_ways(8, sweep), *prefill_ways(sweep)}
        jobs += [(contract, way) for way in sorted(ways, key=str)]
    for where, way in jobs[share::shares]:
        if isinstance(where, str):
            lanes = pool("nvfp4", where, 32)
            call = decode_inputs(1, 8, 1 << 12, False, 0) | {"k_lane": lanes.k_lane, "v_lane": lanes.v_lane}
            call["scale"] = SCALE
        else:
            call = inputs(replace(where, contexts=(300,), tokens=1), "cuda")
        attempt(f"compile {where} {way}", partial(kernels.sparse_attention, **call, config=way))


def compile_all(contracts: str, sweep: bool) -> None:
    """Kernels take seconds each to compile, one after the other minutes."""
    jobs = min(14, os.cpu_count() or 1)
    command = [sys.executable, "-m", "benchmarks.kernels.sparse_attention", "--contracts", contracts]
    command += ["--sweep"] if sweep else []
    workers = [subprocess.Popen([*command, "--compile-share", f"{i}/{jobs}"]) for i in range(jobs)]
    say(compiled=[worker.wait() for worker in workers])


def check_odd_sizes() -> bool:
    """Every way and format against fp64 and against the first way's bits."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # poisons what is handed out unwritten
    good = True
    for case in odd_sizes():
        arguments = inputs(case, "cuda")
        want = reference.sparse_attention(**arguments)
        first = None
        for way in WAYS:
            got = attempt(
                f"{case.format} {case.contract} {case.group} {way}",
                partial(kernels.sparse_attention, **arguments, config=way),
            )
            if got is None:
                good = False
                continue
            error = relative_error(got, want)
            first = got if first is None else first
            same = bool(torch.equal(got, first))
            good &= error < BOUND and same
            say(
                check=f"{case.format} {case.contract} group {case.group}", way=spelled(way), error=error,
                ok=error < BOUND, same_bits=same, different=float((got != first).float().mean()),
            )  # fmt: skip
    torch.use_deterministic_algorithms(False)
    return good


def decode_ways(tokens: int, sweep: bool) -> Iterator[QueryWay]:
    """What a decode case tries; without a sweep the chooser's only."""
    ways = [
        QueryWay(1, 1, 8), QueryWay(1, 1, 4), QueryWay(1, 2, 8), QueryWay(1, 4, 8), QueryWay(1, 0, 8),
        QueryWay(2, 0, 8), QueryWay(2, 1, 8), QueryWay(4, 0, 8), QueryWay(4, 1, 8), QueryWay(8, 0, 8),
        QueryWay(8, 1, 8),
    ]  # fmt: skip
    return (w for w in ways if sweep and w.tokens <= tokens)


def prefill_ways(sweep: bool) -> Iterator[Way]:
    """What a prefill case tries."""
    ways: list[Way] = [
        OuterWay(128, 8, 128), OuterWay(128, 8), OuterWay(64, 4, 168), OuterWay(64, 4), OuterWay(128, 4),
        QueryWay(4, 0, 8), QueryWay(8, 0, 8), QueryWay(2, 0, 8), QueryWay(1, 0, 8), QueryWay(1, 0, 4),
    ]  # fmt: skip
    return iter(ways if sweep else [ways[0], ways[5]])


def measure(
    what: str,
    lanes: Pool,
    calls: list[dict[str, Any]],
    ways: list[Way],
    limits: dict[str, float],
    moved: float,
    rep: int,
) -> list[dict[str, Any]]:
    """Checks and times a case in every way."""
    lines: list[dict[str, Any]] = []
    fixed = {"k_lane": lanes.k_lane, "v_lane": lanes.v_lane, "scale": SCALE}
    few = torch.randperm(len(calls[0]["q"]))[:3].tolist()
    part = {name: calls[0][name][few] for name in ("q", "selection", "block_tables", "positions")}
    want = reference.sparse_attention(**part, **fixed)
    first = None
    flops = sum(operations(c) for c in calls) / len(calls)
    for way in ways:

        def run(way: Way = way) -> dict[str, Any]:
            nonlocal first
            got = kernels.sparse_attention(**calls[0], **fixed, config=way)
            error = relative_error(got[few], want)
            first = got if first is None else first
            different = float((got != first).float().mean())
            if not error < BOUND:
                raise ArithmeticError(f"relative error {error} is not below {BOUND}")
            jobs = [lambda c=c: kernels.sparse_attention(**c, **fixed, config=way) for c in calls]
            us = time_us(jobs, rep)
            return say(
                what=what, way=spelled(way), chosen=way == kernels.way(calls[0]["neighbours"]),
                us=round(us, 2), read_share=round(moved / us * 1e6 / limits["read"], 4),
                bf16_share=round(flops / us * 1e6 / limits["bf16"], 4), error=round(error, 5), different=different,
            ) | {"GB/s": moved / us / 1e3, "TFLOP/s": flops / us / 1e6}  # fmt: skip

        line = attempt(f"{what} {way}", run)
        if line:
            lines.append(line)
    return lines


def run_decode(limits: dict[str, float], contracts: list[str], sweep: bool) -> list[dict[str, Any]]:
    """All decode cases."""
    lines = []
    for contract in contracts:
        lanes = pool("nvfp4", contract, 32 << 10)
        for batch, tokens, context in DECODE:
            for alike in (False, True) if tokens > 1 else (False,):
                kind = "alike" if alike else "random"
                what = f"decode {contract} {batch}x{tokens} at {context >> 10}K {kind}"
                one = decode_inputs(batch, tokens, context, alike, 0)
                moved = keys_read(one, tokens) * lanes.bytes_per_key
                turns = max(3, min(100, math.ceil(L2_BYTES / moved)))
                calls = [one] + [decode_inputs(batch, tokens, context, alike, t) for t in range(1, turns)]
                chosen = kernels.way(tokens)
                ways = [chosen, *(w for w in decode_ways(tokens, sweep and contract == contracts[0]) if w != chosen)]
                lines += attempt(what, partial(measure, what, lanes, calls, ways, limits, moved, 20)) or []
    return lines


def run_prefill(limits: dict[str, float], contracts: list[str], sweep: bool) -> list[dict[str, Any]]:
    """All prefill cases."""
    lines = []
    for contract in contracts:
        lanes = pool("nvfp4", contract, PREFILL[-1] // 128)
        for context in PREFILL:
            for alike in (False, True):
                what = f"prefill {contract} 8192 at {context >> 10}K {'alike' if alike else 'random'}"
                call = prefill_inputs(context, alike, 1)
                moved = keys_read(call, PREFILL_TOKENS) * lanes.bytes_per_key
                chosen = kernels.way(PREFILL_TOKENS)
                ways = [chosen, *(w for w in prefill_ways(sweep and contract == contracts[0]) if w != chosen)]
                lines += attempt(what, partial(measure, what, lanes, [call], ways, limits, moved, 40)) or []
    return lines


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="try several ways of each case")
    parser.add_argument("--only", choices=("decode", "prefill"))
    parser.add_argument("--contracts", default="e4m3,exact")
    parser.add_argument("--out")
    parser.add_argument("--compile-share", help=argparse.SUPPRESS)
    args = parser.parse_args()
    contracts = args.contracts.split(",")
    if args.compile_share:
        share, shares = map(int, args.compile_share.split("/"))
        return compile_share(share, shares, contracts, args.sweep)
    compile_all(args.contracts, args.sweep)
    good = attempt("checks", check_odd_sizes)
    limits = ceilings()
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}"
    say(
        card=card,
        checks_passed=bool(good),
        **{"read_TB/s": limits["read"] / 1e12, "bf16_TFLOP/s": limits["bf16"] / 1e12},
    )
    lines = []
    if args.only != "prefill":
        lines += run_decode(limits, contracts, args.sweep)
    if args.only != "decode":
        lines += run_prefill(limits, contracts, args.sweep)
    if args.out:
        with open(args.out, "w") as file:
            file.writelines(json.dumps({**line, "card": card}) + "\n" for line in lines)
    best: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["what"] not in best or line["us"] < best[line["what"]]["us"]:
            best[line["what"]] = line
    say(card=card, checks_passed=bool(good), best={what: [line["us"], *line["way"]] for what, line in best.items()})


if __name__ == "__main__":
    main()
