"""What promise 4 costs on this machine: decode with rows padded to the invariant tile, against unpadded rows.

Run: python benchmarks/invariance_cost.py [--model FOLDER] [--steps 200] [--rounds 5] [--threads N]

First checks that the padded path is invariant and that the unpadded one is not the same function to the bit (else
there is nothing to pay for), then times decode steps of one request, the two ways in turn. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

import torch

from tamis.config import EngineConfig
from tamis.engine.plan import NewRequest, ScheduledRequest, StepPlan
from tamis.engine.sampling_params import SamplingParams
from tamis.frontend.model_path import resolve_model
from tamis.kernels import registry
from tamis.kernels.linear import broken_shapes, cpu
from tamis.runner import load_engine
from tamis.runner.model_runner import ModelRunner

CONTEXT_TOKENS = 300


def decode_ms(runner: ModelRunner, steps: int, step_id: int) -> tuple[list[float], int]:
    """Milliseconds of each decode step after one prefill, and the next free step id."""
    name = f"r{step_id}"
    blocks = list(range(1, 2 + (CONTEXT_TOKENS + steps) // 128))
    sampling = SamplingParams(temperature=0.0, max_tokens=steps + 1, ignore_eos=True, seed=0)
    new = NewRequest(
        request_id=name,
        token_ids=[1 + i % 97 for i in range(CONTEXT_TOKENS)],
        num_prompt_tokens=CONTEXT_TOKENS,
        num_computed_tokens=0,
        block_ids=blocks,
        sampling=sampling,
    )
    prefill = ScheduledRequest(request_id=name, num_tokens=CONTEXT_TOKENS)
    runner.execute(StepPlan(step_id=step_id, new=[new], scheduled=[prefill], finished=[]))
    times = []
    for i in range(steps):
        plan = StepPlan(
            step_id=step_id + 1 + i, new=[], scheduled=[ScheduledRequest(request_id=name, num_tokens=1)], finished=[]
        )
        start = time.perf_counter()
        runner.execute(plan)
        times.append(1e3 * (time.perf_counter() - start))
    runner.execute(StepPlan(step_id=step_id + steps + 1, new=[], scheduled=[], finished=[name]))
    return times, step_id + steps + 2


def main() -> None:
    """Parse, check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="nano")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    # The native products need no padding; what is measured is the BLAS, which serves where they do not.
    registry.IMPLEMENTATIONS = tuple(
        i for i in registry.IMPLEMENTATIONS if i.name != "native" or i.op not in ("linear", "moe")
    )
    config = EngineConfig(model=str(resolve_model(args.model)), threads=args.threads, num_blocks_override=64)
    runner, _ = load_engine(config.replace(max_model_len=4096), lambda stage, percent: None)
    shapes = {(p.shape[-2], p.shape[-1], p.dtype) for p in runner.model.parameters() if p.dim() >= 2}
    assert not broken_shapes(shapes), "the padded path is not invariant here"

    tile, padded_rows = cpu.row_tile(), cpu.row_tile
    medians: dict[str, list[float]] = {"padded": [], "unpadded": []}
    step_id = 0
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        for name, rows in (("padded", padded_rows), ("unpadded", lambda: 1)):
            cpu.row_tile = rows
            times, step_id = decode_ms(runner, args.steps, step_id)
            medians[name].append(statistics.median(times))
    cpu.row_tile = lambda: 1
    broken = broken_shapes(shapes)
    cpu.row_tile = padded_rows
    runner.shutdown()

    result = {
        "benchmark": "invariance_cost",
        "model": args.model,
        "threads": torch.get_num_threads(),
        "row_tile": tile,
        "shapes": len(shapes),
        "shapes_that_unpadded_rows_break": len(broken),
        "padded_ms": round(statistics.median(medians["padded"]), 3),
        "padded_ms_min_max": [round(min(medians["padded"]), 3), round(max(medians["padded"]), 3)],
        "unpadded_ms": round(statistics.median(medians["unpadded"]), 3),
        "unpadded_ms_min_max": [round(min(medians["unpadded"]), 3), round(max(medians["unpadded"]), 3)],
    }
    result["cost_ratio"] = round(result["padded_ms"] / result["unpadded_ms"], 3)
    print(f"{'rows':<10}{'decode step, ms':>16}{'min … max of rounds':>24}")
    for name in medians:
        low, high = result[f"{name}_ms_min_max"]
        print(f"{name:<10}{result[f'{name}_ms']:>16}{f'{low} … {high}':>24}")
    print(f"unpadded rows break {len(broken)} of {len(shapes)} matrix shapes on this machine")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
