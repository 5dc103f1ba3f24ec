"""Matrix product whose rows do not depend on each other's presence (batch invariance, promise 4)."""

from tamis.kernels.linear.cpu import ROW_TILE, linear

__all__ = ["ROW_TILE", "linear"]
