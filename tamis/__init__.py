"""Tamis serves MiniMax Sparse Attention models: `LLM` and `SamplingParams` offline, `tamis serve` over HTTP."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tamis.version import __version__

if TYPE_CHECKING:
    from tamis.engine.sampling_params import SamplingParams
    from tamis.frontend.llm import LLM

__all__ = ["LLM", "SamplingParams", "__version__"]

_LAZY = {"LLM": "tamis.frontend.llm", "SamplingParams": "tamis.engine.sampling_params"}


def __getattr__(name: str) -> Any:
    # Imported on use, so that `tamis --help` does not pay for torch.
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tamis' has no attribute {name!r}")
