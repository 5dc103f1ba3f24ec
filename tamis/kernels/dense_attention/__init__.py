"""Causal attention over a request's whole context, straight from the rows (M3's full-attention layers)."""

from tamis.kernels.dense_attention.cpu import dense_attention

__all__ = ["dense_attention"]
