"""Insert token by token."""

from __future__ import annotations

from torch import Tensor

from tamis.kernels.lane import Lane, encode


def insert(lane: Lane, x: Tensor, slots: Tensor) -> None:
    """See `cpu.insert`."""
    for token, slot in enumerate(slots.tolist()):
        for head in range(x.shape[1]):
            codes, scales = encode(x[token, head], lane.format)
            lane.codes[slot // 128, head, slot % 128] = codes
            if lane.scales is not None and scales is not None:
                lane.scales[slot // 128, head, slot % 128] = scales
