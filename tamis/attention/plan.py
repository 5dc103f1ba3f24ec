"""What attention must know of one step, planned once and read by every layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """One request's tokens in a step: `[start, start + length)` of the step, ending at context `context_tokens`."""

    start: int
    length: int
    context_tokens: int


@dataclass(frozen=True)
class StepTables:
    """What attention must know of a step.

    Attributes:
        segments: one a request, in step order.
        positions: [T] int64.
        slots: [T] int64 pool slots (block · 128 + offset) that the step's tokens are written to.
        block_tables: [R, n] int64, zero padded.
        request_of_token: [T] int64, row of `block_tables`.
    """

    segments: list[Segment]
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    request_of_token: Tensor
