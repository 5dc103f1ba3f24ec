"""Exact softmax attention over each query's selected blocks, straight from the rows."""

from tamis.kernels.sparse_attention.cpu import sparse_attention

__all__ = ["sparse_attention"]
