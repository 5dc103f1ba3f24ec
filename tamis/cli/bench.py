"""`tamis bench`: measurements of what is served."""

from __future__ import annotations

from typing import Any

from tamis.bench.eval_config import EvalConfig


def evaluate(values: dict[str, Any]) -> int:
    """Score a model's skills; `values` are fields of `EvalConfig`."""
    config = EvalConfig(**values)
    # The engine comes with it.
    from tamis.bench.eval import run

    return run(config)
