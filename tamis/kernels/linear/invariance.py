"""Whether the BLAS of this machine keeps a row's bits apart from its neighbours, found out by trying."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tamis.kernels.linear.cpu import ROW_TILE, linear, row_tile

_BATCHED_SIZE = 256


Shape = tuple[int, int, torch.dtype]


def broken_shapes(shapes: Iterable[Shape]) -> list[Shape]:
    """Shapes (N, K, dtype) of weights for which some row's bits depend on how many rows there are.

    Each is tried with one tile, several tiles and many rows, at shifted places; a small one, as attention uses it, also
    as a batched product of few and many matrices. The order in which a library sums does not depend on the values, so
    random ones show it.
    """
    generator = torch.Generator().manual_seed(0)
    return [s for s in sorted(set(shapes), key=str) if not _is_invariant(*s, generator)]


def _is_invariant(n: int, k: int, dtype: torch.dtype, generator: torch.Generator) -> bool:
    tile = row_tile()
    rows = torch.randn(24 * tile, k, generator=generator).to(dtype)
    weight = torch.randn(n, k, generator=generator).to(dtype)
    want = linear(rows, weight)
    for count, start in ((1, 0), (3, 5), (tile, 3), (2 * tile, 1), (7 * tile + 1, 2)):
        if not torch.equal(linear(rows[start : start + count], weight), want[start : start + count]):
            return False
    return max(n, k) > _BATCHED_SIZE or all(
        torch.equal(
            torch.bmm(matrices, weight.T.expand(len(matrices), k, n)).flatten(0, 1), want[: matrices[..., 0].numel()]
        )
        for matrices in (
            rows[:ROW_TILE].view(1, ROW_TILE, k),
            rows.view(-1, ROW_TILE, k),
            rows[: 2 * ROW_TILE * (len(rows) // (2 * ROW_TILE))].view(2, -1, k),
        )
    )
