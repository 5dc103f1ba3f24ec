"""Partial rotary embedding, NeoX halves, from a table that depends on the position alone."""

from __future__ import annotations

import torch
from torch import Tensor

_TABLE_STEP_TOKENS = 4096


class RotaryTable:
    """cos and sin of every position seen so far.

    The table grows in steps of one fixed shape, so that an entry's bits depend on its position only: elementwise
    cos may round differently in the vector body and the scalar tail of a loop.
    """

    def __init__(self, rotary_dim: int, theta: float):
        self.rotary_dim = rotary_dim
        even = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device="cpu")
        self._inverse_frequency = 1.0 / (theta ** (even / rotary_dim))
        self._table = torch.empty(0, 2, rotary_dim // 2, dtype=torch.float32, device="cpu")

    def lookup(self, positions: Tensor, num_positions: int) -> tuple[Tensor, Tensor]:
        """positions: [T] int64, all below `num_positions` (a host number, so that nothing syncs).

        Returns:
            cos, sin: [T, rotary_dim / 2] fp32 on the device of `positions`.
        """
        while self._table.shape[0] < num_positions:
            start = self._table.shape[0]
            angle = (
                torch.arange(start, start + _TABLE_STEP_TOKENS, dtype=torch.float32)[:, None] * self._inverse_frequency
            )
            step = torch.stack([angle.cos(), angle.sin()], dim=1)
            self._table = torch.cat([self._table, step.to(self._table.device)])
        if self._table.device != positions.device:
            self._table = self._table.to(positions.device)
        entry = self._table[positions]
        return entry[:, 0], entry[:, 1]


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first `2 * cos.shape[-1]` dims of each head; the rest passes through.

    Args:
        x: [T, heads, head_dim].
        cos, sin: [T, rotary_dim / 2] fp32.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
