"""Write a step's vectors into a lane, quantising on the way."""

from tamis.kernels.row_insert.cpu import insert

__all__ = ["insert"]
