"""Scores that know nothing: the measuring device beside an indexer's."""

from __future__ import annotations

import torch
from torch import Tensor

# Odd 64-bit constants of splitmix64 (Steele, Lea, Flood 2014), as signed integers.
_FACTORS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)


def random_scores(positions: Tensor, *, heads: int, num_blocks: int, seed: int) -> Tensor:
    """Uniform scores in [0, 1), a function of position, head, block and seed only: chunks and batches change nothing.

    Args:
        positions: [T] int64.
        seed: the layer, say; any int that fits 32 bits.

    Returns:
        [T, heads, num_blocks] fp32.
    """
    device = positions.device
    head = torch.arange(heads, device=device)[:, None]
    block = torch.arange(num_blocks, device=device)
    bits = positions[:, None, None] * 2**32 + (seed * heads + head) * 2**20 + block
    for factor in _FACTORS:
        # Logical shifts: what the arithmetic one drags in from the sign is masked off. Products wrap around.
        bits = (bits ^ ((bits >> 31) & (2**33 - 1))) * factor
    return ((bits >> 40) & (2**24 - 1)).float() * 2.0**-24
