"""Exact top-k over block scores, with a total order and forced blocks."""

from __future__ import annotations

from torch import Tensor

from tamis.kernels import registry
from tamis.kernels.topk_blocks import cpu, native
from tamis.kernels.topk_blocks.random_scores import random_scores

__all__ = ["random_scores", "select_blocks", "variant"]

MAX_K = 32
MAX_BLOCKS = 16_384


def variant(k: int, num_blocks: int) -> str:
    """What has to be computed, as the registry's entries name it."""
    fits = k <= MAX_K and num_blocks <= MAX_BLOCKS
    return "up to 32 of 16384" if fits else f"{k} of {num_blocks}"


def select_blocks(scores: Tensor, positions: Tensor, *, k: int, init: int, local: int) -> Tensor:
    """See `cpu.select_blocks`; served by the native kernel or by Triton's where the registry finds it."""
    name = registry.select("topk_blocks", scores.device.type, variant(k, scores.shape[-1])).name
    if name == "native":
        return native.select_blocks(scores, positions, k=k, init=init, local=local)
    if name == "triton":
        from tamis.kernels.topk_blocks import triton

        return triton.select_blocks(scores, positions, k=k, init=init, local=local)
    return cpu.select_blocks(scores, positions, k=k, init=init, local=local)
