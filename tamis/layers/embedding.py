"""Token embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Embedding(nn.Module):
    """Rows of `weight` [vocab_size, hidden_size] by token id."""

    def __init__(self, vocab_size: int, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: [T] int64 → [T, hidden_size]."""
        return nn.functional.embedding(token_ids, self.weight)
