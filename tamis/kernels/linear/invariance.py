"""Whether the BLAS of this machine keeps a row's bits apart from its neighbours, found out by trying."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tamis.kernels.linear.cpu import ROW_TILE, linear, row_tile


def broken_shapes(shapes: Iterable[tuple[int, int]], dtype: torch.dtype) -> list[tuple[int, int]]:
    """Shapes (N, K) of weights for which some row's bits depend on how many rows there are.

    Each is tried with one tile, several tiles and many rows, at shifted places, and as a batched product. The order
    in which a library sums does not depend on the values, so random ones show it.
    """
    generator = torch.Generator().manual_seed(0)
    return [s for s in sorted(set(shapes)) if not _is_invariant(*s, dtype, generator)]


def _is_invariant(n: int, k: int, dtype: torch.dtype, generator: torch.Generator) -> bool:
    tile = row_tile()
    rows = torch.randn(24 * tile, k, generator=generator).to(dtype)
    weight = torch.randn(n, k, generator=generator).to(dtype)
    want = linear(rows, weight)
    for count, start in ((1, 0), (3, 5), (tile, 3), (2 * tile, 1), (7 * tile + 1, 2)):
        if not torch.equal(linear(rows[start : start + count], weight), want[start : start + count]):
            return False
    if n > 4096:
        return True  # only block-sized products are ever batched
    batched = rows[: 3 * ROW_TILE].view(3, ROW_TILE, k)
    for count in (1, 3):
        got = torch.bmm(batched[:count], weight.T.expand(count, k, n)).flatten(0, 1)
        if not torch.equal(got, want[: count * ROW_TILE]):
            return False
    return True
