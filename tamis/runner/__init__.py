"""Turns plans into tensors and tokens; `load_engine` makes a runner from a configuration."""

from tamis.runner.load import load_engine

__all__ = ["load_engine"]
