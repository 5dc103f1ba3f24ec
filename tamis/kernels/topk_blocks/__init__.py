"""Exact top-k over block scores, with a total order and forced blocks."""

from tamis.kernels.topk_blocks.cpu import select_blocks
from tamis.kernels.topk_blocks.random_scores import random_scores

__all__ = ["random_scores", "select_blocks"]
