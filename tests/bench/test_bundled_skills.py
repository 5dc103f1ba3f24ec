"""The bundled model, a few held-out questions of each kind: far above what a model without the skill scores."""

from __future__ import annotations

from typing import Any

import pytest

from tamis.bench.eval import evaluate
from tamis.bench.eval_config import EvalConfig

# Of 5 fixed questions each; the card has the scores of 200.
FLOORS = {"needle_2k": 4, "json_extraction": 4, "tool_call": 4, "python_function": 3, "counting": 3}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return evaluate(
        EvalConfig(skills=f"{','.join(FLOORS)},python", items=5, perplexity_tokens=1500, threads=1), lambda line: None
    )


def test_it_scores_above_the_floor(report: dict[str, Any]) -> None:
    low = {
        name: report["skills"][name]["right"]
        for name, floor in FLOORS.items()
        if report["skills"][name]["right"] < floor
    }
    assert not low


def test_it_has_read_python(report: dict[str, Any]) -> None:
    assert report["python"]["perplexity"] < 25  # a guess is 4096
