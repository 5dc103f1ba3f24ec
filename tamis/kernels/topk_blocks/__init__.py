"""Exact top-k over block scores, with a total order and forced blocks."""

from tamis.kernels.topk_blocks.cpu import select_blocks

__all__ = ["select_blocks"]
