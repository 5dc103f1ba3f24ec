"""Matrix product whose rows do not depend on each other's presence (batch invariance, promise 4)."""

from tamis.kernels.linear.cpu import ROW_TILE, linear, row_tile
from tamis.kernels.linear.invariance import broken_shapes

__all__ = ["ROW_TILE", "broken_shapes", "linear", "row_tile"]
