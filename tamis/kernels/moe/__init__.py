"""Expert routing, the routed experts, and the whole mixture with its shared expert."""

from tamis.kernels.moe.cpu import experts, moe, route

__all__ = ["experts", "moe", "route"]
