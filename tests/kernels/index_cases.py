"""Cases of index scoring and selection in Triton: run in Triton's interpreter on a CPU, and by tests/gpu on a GPU.

`python -m tests.kernels.index_cases` prints {case: result} as JSON. Pools are poisoned: slots past a request's last
token, blocks of nobody and unwritten outputs hold NaN.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tamis.attention import device_selection
from tamis.attention.plan import Segment, StepTables
from tamis.kernels.index_score import triton as score_triton
from tamis.kernels.index_score.triton import ScoreTiles
from tamis.kernels.lane import Lane, encode
from tamis.kernels.topk_blocks import reference as topk_reference
from tamis.kernels.topk_blocks import triton as topk_triton

DIM = 128
# name → format and contract.
KEYS = {
    "nvfp4": ("nvfp4", "exact"),
    "nvfp4 e4m3": ("nvfp4", "e4m3"),
    "bfloat16": ("bfloat16", "exact"),
    "fp8": ("fp8", "exact"),
}


def pool_lane(keys: str, num_blocks: int, device: str) -> Lane:
    """A lane in rows with something before and after it, every byte of it NaN."""
    form, contract = KEYS[keys]
    codes_bytes = {"nvfp4": 64, "bfloat16": 256, "fp8": 128}[form] * 128
    rows = torch.full((num_blocks, 48 + codes_bytes + 1024 + 16), 0x7F, dtype=torch.uint8, device=device)
    rows[:, : codes_bytes + 48] = 0xFF
    codes = rows[:, 48 : 48 + codes_bytes]
    if form == "nvfp4":
        scales = rows[:, 48 + codes_bytes : 48 + codes_bytes + 1024].view(torch.float8_e4m3fn)
        return Lane(form, codes.unflatten(1, (1, 128, 64)), scales.unflatten(1, (1, 128, 8)), contract)
    dtype = {"bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[form]
    return Lane(form, codes.view(dtype).unflatten(1, (1, 128, DIM)), None, contract)


@dataclass
class Requests:
    """Keys of several contexts in scattered blocks of one pool, and queries at their ends.

    Attributes:
        counts: tokens of each request's step; contexts: tokens with it.
        q: [T, heads, 128] bf16; positions: [T]; starts: [R + 1]; tables: [R, n].
        lane: as kernels read it.
    """

    keys: str
    heads: int
    counts: list[int]
    contexts: list[int]
    device: str = "cpu"
    seed: int = 0
    q: Tensor = field(init=False)
    positions: Tensor = field(init=False)
    starts: Tensor = field(init=False)
    tables: Tensor = field(init=False)
    lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        blocks = [-(-c // 128) for c in self.contexts]
        ids = torch.randperm(sum(blocks) + 3, generator=generator)
        self.lane = pool_lane(self.keys, sum(blocks) + 3, self.device)
        self.tables = torch.zeros(len(blocks), max(blocks), dtype=torch.int64, device=self.device)
        positions, at = [], 0
        for r, (count, context) in enumerate(zip(self.counts, self.contexts, strict=True)):
            table = ids[at : at + blocks[r]].to(self.device)
            at += blocks[r]
            self.tables[r, : blocks[r]] = table
            x = torch.randn(context, DIM, generator=generator) * torch.randn(context, 1, generator=generator).exp()
            self._write(x.to(self.device), table)
            positions.append(torch.arange(context - count, context))
        self.positions = torch.cat(positions).to(self.device)
        self.starts = torch.tensor([0, *self.counts], device=self.device).cumsum(0)
        q = torch.randn(sum(self.counts), self.heads, DIM, generator=generator) * 3.0
        self.q = q.bfloat16().to(self.device)

    def _write(self, x: Tensor, table: Tensor) -> None:
        codes, scales = encode(x, self.lane.format)
        slot = torch.arange(len(x), device=x.device)
        at = (table[slot // 128], 0, slot % 128)
        # As bytes: not every device writes float8 through indices.
        self.lane.codes.view(torch.uint8)[at] = codes.view(torch.uint8)
        if scales is not None and self.lane.scales is not None:
            self.lane.scales.view(torch.uint8)[at] = scales.view(torch.uint8)

    def expected(self, tokens: list[int] | None = None) -> Tensor:
        """[T, heads, n] fp64 of `tokens` (None: all); −inf past the query's own block."""
        request = torch.repeat_interleave(torch.arange(len(self.counts)), torch.tensor(self.counts))
        chosen = range(len(request)) if tokens is None else tokens
        out = torch.full((len(chosen), self.heads, self.tables.shape[1]), -torch.inf, dtype=torch.float64)
        for i, t in enumerate(chosen):
            visible = int(self.positions[t]) + 1
            blocks = -(-visible // 128)
            keys = self.lane.read(self.tables[request[t], :blocks], 0).double().flatten(0, 1)[:visible]
            dots = self.lane.query(self.q[t]).double() @ keys.T
            dots = torch.nn.functional.pad(dots, (0, blocks * 128 - visible), value=-torch.inf)
            out[i, :, :blocks] = dots.unflatten(1, (blocks, 128)).amax(-1).cpu()
        return out

    def scratch(self) -> Tensor:
        """Room for all scores, poisoned, in rows that are longer than they need be."""
        width = -(-self.tables.shape[1] // 16) * 16
        shape = (len(self.q), self.heads, width)
        return torch.full(shape, torch.nan, device=self.device)[..., : self.tables.shape[1]]

    def decode(self, config: ScoreTiles | None = None) -> Tensor:
        """All scores by one launch."""
        out = self.scratch()
        score_triton.decode_scores(
            self.q, self.lane, self.tables, self.starts, self.positions, out, max_tokens=max(self.counts), config=config
        )
        return out

    def prefill(self, config: ScoreTiles | None = None) -> Tensor:
        """All scores, a launch a request."""
        out = self.scratch()
        for r, context in enumerate(self.contexts):
            tokens = slice(int(self.starts[r]), int(self.starts[r + 1]))
            if self.counts[r]:
                table = self.tables[r, : -(-context // 128)]
                score_triton.prefill_scores(
                    self.q[tokens], self.lane, table, self.positions[tokens], out[tokens], config
                )
        return out


def visible_only(scores: Tensor, positions: Tensor) -> Tensor:
    """Scores with −inf past each query's own block, whatever stands there."""
    block = torch.arange(scores.shape[-1], device=scores.device)
    return scores.masked_fill(block > positions[:, None, None] // 128, -torch.inf)


def score_error(got: Tensor, want: Tensor, positions: Tensor) -> float:
    """Largest difference over visible blocks, against the largest score; NaN where one is not written."""
    got = visible_only(got, positions).double().cpu()
    seen = want > -torch.inf
    if not torch.equal(seen, got > -torch.inf):
        return float("nan")
    return float((got[seen] - want[seen]).abs().max() / want[seen].abs().max())


_KEYS_FIRST = ScoreTiles(32, 4, True, True, 4, 2)
_QUERIES_FIRST = ScoreTiles(16, 2, False, True, 4, 2)
_BY_BLOCK = ScoreTiles(64, 4, True, False, 4, 2)
_PREFILL_COLLECT = ScoreTiles(64, 4, False, True, 4, 2)

DECODE: dict[str, tuple[dict[str, Any], ScoreTiles | None]] = {
    "1 token": ({"heads": 4, "counts": [1], "contexts": [900]}, None),
    "3 heads": ({"heads": 3, "counts": [2, 1], "contexts": [131, 257]}, None),
    "draft, empty and first tokens": (
        {"heads": 4, "counts": [5, 0, 1, 8, 3], "contexts": [389, 500, 1, 8, 1030]},
        _KEYS_FIRST,
    ),
    "queries first": ({"heads": 2, "counts": [3, 8], "contexts": [260, 517]}, _QUERIES_FIRST),
    "block by block": ({"heads": 4, "counts": [16, 2], "contexts": [530, 129]}, _BY_BLOCK),
}
PREFILL: dict[str, tuple[dict[str, Any], ScoreTiles | None]] = {
    "from empty": ({"heads": 4, "counts": [150], "contexts": [150]}, None),
    "a chunk": ({"heads": 2, "counts": [70], "contexts": [701]}, None),
    "keys first": ({"heads": 3, "counts": [37, 50], "contexts": [300, 561]}, _BY_BLOCK),
    "collected": ({"heads": 4, "counts": [41], "contexts": [640]}, _PREFILL_COLLECT),
}


def score_cases(device: str) -> dict[str, float]:
    """{case: error} of both ways in every format."""
    out = {}
    for keys in KEYS:
        for way, cases in (("decode", DECODE), ("prefill", PREFILL)):
            for name, (shape, config) in cases.items():
                requests = Requests(keys, **shape, device=device, seed=len(name))
                got = requests.decode(config) if way == "decode" else requests.prefill(config)
                out[f"{keys} {way} {name}"] = score_error(got, requests.expected(), requests.positions)
    return out


@dataclass(frozen=True)
class TopK:
    """Scores of a kind for a number of blocks."""

    num_blocks: int
    k: int = 16
    init: int = 0
    local: int = 1
    kind: str = "normal"
    tokens: int = 3
    heads: int = 2

    def inputs(self, device: str) -> tuple[Tensor, Tensor]:
        """Scores, NaN past a query's own block and in the rows' padding, and positions."""
        generator = torch.Generator().manual_seed(self.num_blocks * 100 + self.k)
        shape = (self.tokens, self.heads, -(-self.num_blocks // 16) * 16)
        scores = torch.randn(shape, generator=generator)
        if self.kind == "ties":
            scores = torch.randint(-3, 3, shape, generator=generator).float()
        if self.kind == "equal":
            scores = torch.zeros(shape)
            scores[..., ::2] = -0.0
        if self.kind == "ascending":
            scores = torch.arange(shape[-1]).float().expand(shape).contiguous()
        if self.kind == "clustered":
            scores[..., ::128] += 50.0
        if self.kind in ("ties", "special"):
            for value in (torch.nan, torch.inf, -torch.inf, -1e30, 3.4e38, 1e-42):
                scores[torch.rand(shape, generator=generator) < 0.04] = value
        positions = torch.randint(0, self.num_blocks * 128, (self.tokens,), generator=generator)
        positions[0] = self.num_blocks * 128 - 1
        past = torch.arange(shape[-1]) > positions[:, None, None] // 128
        return scores.masked_fill(past, torch.nan).to(device)[..., : self.num_blocks], positions.to(device)

    def wrong_rows(self, device: str) -> int:
        """How many rows differ from the reference."""
        scores, positions = self.inputs(device)
        got = topk_triton.select_blocks(scores, positions, k=self.k, init=self.init, local=self.local)
        finite = torch.finfo(torch.float32).max
        want = topk_reference.select_blocks(
            scores.cpu().clamp(-finite, finite), positions.cpu(), k=self.k, init=self.init, local=self.local
        )
        return int((got.cpu() != want).any(-1).sum())


TOPK = {
    f"{c.kind}, {c.k} of {c.num_blocks}, {c.init}+{c.local} forced": c
    for c in (
        *(TopK(n) for n in (1, 15, 16, 17, 63, 64, 65, 129, 700, 1025)),
        *(TopK(40, k, 1, 1, "ties", 9) for k in (2, 3, 5, 16, 32)),
        TopK(300, 16, 0, 0, "ties", 9),
        TopK(300, 16, 2, 3, "special", 9),
        TopK(90, 1, 0, 1),
        TopK(90, 2, 1, 1),
        TopK(5, 4, 2, 2),
        TopK(200, 16, 0, 1, "equal"),
        TopK(500, 16, 0, 1, "ascending"),
        TopK(900, 32, 1, 1, "clustered"),
    )
}


def step_tables(requests: Requests) -> StepTables:
    """The requests as one step."""
    starts = requests.starts.tolist()
    counts = torch.tensor(requests.counts)
    return StepTables(
        segments=[Segment(s, n, c) for s, n, c in zip(starts, requests.counts, requests.contexts, strict=False)],
        positions=requests.positions,
        slots=torch.zeros(0, dtype=torch.int64),
        block_tables=requests.tables,
        request_of_token=torch.arange(len(counts)).repeat_interleave(counts).to(requests.device),
    )


# Decode and prefill in turn, a request without tokens, contexts that are selected whole; cut where scratch is small.
STEP: dict[str, Any] = {
    "heads": 4,
    "counts": [1, 3, 0, 40, 2, 1, 25, 1],
    "contexts": [700, 3, 300, 900, 513, 129, 25, 650],
}
STEP_SCRATCH_BYTES = (256 << 20, 4 * 4 * 16 * 17)


def wrong_step_rows(keys: str, scratch_bytes: int, device: str) -> int:
    """How many rows of a whole step's selection differ from those by fp64 scores."""
    requests = Requests(keys, **STEP, device=device, seed=3)
    tables = step_tables(requests)
    before, device_selection._SCRATCH_BYTES = device_selection._SCRATCH_BYTES, scratch_bytes
    try:
        starts = device_selection.request_starts(tables)
        got = device_selection.select(requests.q, requests.lane, tables, starts, k=4, init=0, local=1)
    finally:
        device_selection._SCRATCH_BYTES = before
    want = topk_reference.select_blocks(requests.expected(), requests.positions.cpu(), k=4, init=0, local=1)
    return int((got.cpu() != want).any(-1).sum())


def count_with_scalars() -> None:
    """Let the interpreter's scalars be bounds of loops: it holds them in arrays of one element, which NumPy 2.4 no
    longer turns into integers."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: scalar.handle.data.item())

    interpreter._patch_lang_tensor = patched


def main() -> None:
    """Every case on the CPU; needs TRITON_INTERPRET=1."""
    count_with_scalars()
    # Fills what torch.empty returns with NaN, or the largest integer.
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    selections = {name: case.wrong_rows("cpu") for name, case in TOPK.items()}
    selections |= {f"step, {bytes_} bytes": wrong_step_rows("nvfp4", bytes_, "cpu") for bytes_ in STEP_SCRATCH_BYTES}
    json.dump({"scores": score_cases("cpu"), "selections": selections}, sys.stdout)


if __name__ == "__main__":
    main()
