"""Expert routing and the routed experts."""

from tamis.kernels.moe.cpu import experts, route

__all__ = ["experts", "route"]
