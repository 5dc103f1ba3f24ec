"""Cases of the Triton sparse attention: run in Triton's interpreter on a CPU, and by tests/gpu on a GPU.

`python -m tests.kernels.sparse_attention_cases` prints {case: relative error} as JSON. Slots that no token wrote read
as NaN or as the largest value, and memory that torch hands out unwritten is NaN, so a leak of either is seen.
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tamis.kernels.lane import Lane, encode
from tamis.kernels.row_insert import insert
from tamis.kernels.sparse_attention import reference
from tamis.kernels.sparse_attention import triton as kernels
from tamis.kernels.sparse_attention.triton import OuterWay, QueryWay, Way
from tamis.kernels.topk_blocks import select_blocks

ROW_PADDING_BYTES = 1040
LANES = (("nvfp4", "exact"), ("nvfp4", "e4m3"), ("fp8", "exact"), ("bfloat16", "exact"))


@dataclass(frozen=True)
class Case:
    """Requests of `contexts` tokens each, the last `tokens` of which (or all, where there are fewer) are queries."""

    format: str
    contract: str
    contexts: tuple[int, ...]
    tokens: int
    group: int = 16
    kv_heads: int = 2
    slots: int = 3
    dtype: torch.dtype = torch.bfloat16
    alike: bool = False
    way: Way | None = None

    @property
    def name(self) -> str:
        """What differs between cases."""
        way = "default" if self.way is None else f"{type(self.way).__name__}{astuple(self.way)}"
        contexts = "+".join(map(str, self.contexts))
        likeness = " alike" if self.alike else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.format} {self.contract} {contexts}, {self.tokens} tokens, {self.kv_heads}x{self.group} heads, "
            f"{self.slots} slots{likeness}, {dtype}, {way}"
        )


def poisoned_rows(format: str, num_blocks: int, heads: int, contract: str, device: str) -> tuple[Lane, Lane]:
    """K and V lanes inside rows with other bytes around them, as a pool has them; nothing is written yet."""
    codes, scales = encode(torch.zeros(1, heads, 128, 128), format)
    sizes = [t.numel() * t.element_size() for t in (codes, scales) if t is not None]
    rows = torch.full((num_blocks, 2 * sum(sizes) + ROW_PADDING_BYTES), 0x7F, dtype=torch.uint8, device=device)
    lanes, at = [], 16
    for _ in range(2):
        parts = []
        for like, size in zip((codes, scales), sizes, strict=False):
            view = rows[:, at : at + size].view(like.dtype).view(num_blocks, *like.shape[1:])
            view.view(torch.uint8).fill_(0x77 if format == "nvfp4" and like is codes else 0x7F)
            if format == "bfloat16":
                view.fill_(torch.nan)
            parts.append(view)
            at += size
        lanes.append(Lane(format, parts[0], parts[1] if scales is not None else None, contract))
    return lanes[0], lanes[1]


def inputs(case: Case, device: str) -> dict[str, Any]:
    """Arguments of `sparse_attention`. Blocks are shuffled; query rows and values differ in size."""
    generator = torch.Generator(device).manual_seed(sum(case.contexts) + case.tokens)
    counts = [-(-context // 128) for context in case.contexts]
    shuffled = torch.randperm(sum(counts) + 3, generator=generator, device=device)
    k_lane, v_lane = poisoned_rows(case.format, sum(counts) + 3, case.kv_heads, case.contract, device)
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int64, device=device)
    q, selections, positions, requests = [], [], [], []
    for request, (context, count) in enumerate(zip(case.contexts, counts, strict=True)):
        tables[request, :count] = shuffled[sum(counts[:request]) :][:count]
        token = torch.arange(context, device=device)
        slots = tables[request, token // 128] * 128 + token % 128
        for lane in (k_lane, v_lane):
            values = torch.randn(context, case.kv_heads, 128, generator=generator, device=device)
            insert(lane, values * torch.rand(context, case.kv_heads, 1, generator=generator, device=device) * 2, slots)
        position = token[max(0, context - case.tokens) :]
        scores = torch.randn(len(position), case.kv_heads, count, generator=generator, device=device)
        if case.alike:
            scores = scores[:1] + 0.1 * scores
        selections.append(select_blocks(scores, position, k=case.slots, init=0, local=1))
        q.append(torch.randn(len(position), case.kv_heads * case.group, 128, generator=generator, device=device))
        positions.append(position)
        requests += [request] * len(position)
    return {
        "q": torch.cat(q).to(case.dtype),
        "k_lane": k_lane,
        "v_lane": v_lane,
        "selection": torch.cat(selections),
        "block_tables": tables[torch.tensor(requests, device=device)],
        "positions": torch.cat(positions),
        "scale": 128**-0.5,
    }


def relative_error(got: Tensor, want: Tensor) -> float:
    """Largest over the heads, Frobenius; NaN where either has one."""
    difference = (got.double() - want).norm(dim=-1) / want.norm(dim=-1)
    return float("nan") if not bool(torch.isfinite(difference).all()) else float(difference.max())


def error(case: Case, device: str) -> float:
    """Against fp64."""
    arguments = inputs(case, device)
    got = kernels.sparse_attention(**arguments, config=case.way)
    return relative_error(got, reference.sparse_attention(**arguments))


WAYS: tuple[Way, ...] = (
    QueryWay(1, 0), QueryWay(1, 1), QueryWay(1, 3), QueryWay(2, 0), QueryWay(4, 0), QueryWay(4, 1), QueryWay(8, 0),
    OuterWay(128, 8), OuterWay(128, 8, 128), OuterWay(64, 4, 168),
)  # fmt: skip


def interpreted_cases() -> list[Case]:
    """Few and small: the interpreter takes seconds for each."""
    small = Case("nvfp4", "exact", (300, 5), 2, group=3, kv_heads=1, slots=2)
    cases = [replace(small, format=f, contract=c, way=QueryWay(1, 0)) for f, c in LANES]
    cases += [replace(small, way=way, tokens=3) for way in WAYS[1:-2]]
    cases += [replace(small, contract="e4m3", way=WAYS[-1])]
    cases += [
        replace(small, contexts=(257,), group=16, dtype=torch.float32, contract="e4m3"),
        replace(small, contexts=(700, 130), tokens=2, group=1, kv_heads=2, slots=5, alike=True, way=QueryWay(4, 2)),
    ]
    return cases


def main() -> None:
    """Every small case on the CPU; needs TRITON_INTERPRET=1."""
    # Fills what torch.empty returns with NaN.
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    json.dump({case.name: error(case, "cpu") for case in interpreted_cases()}, sys.stdout)


if __name__ == "__main__":
    main()
