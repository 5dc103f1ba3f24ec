"""Loading refuses what the machine cannot give, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tamis.config import EngineConfig
from tamis.errors import ConfigError
from tamis.frontend.model_path import resolve_model
from tamis.runner.load import load_engine


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param({"threads": 100_000}, "--threads is 100000, but must be at most", id="threads"),
        pytest.param({"num_blocks_override": 10**11}, "The KV pool of 100000000001 blocks", id="pool-over-memory"),
        pytest.param({"num_blocks_override": 10**16}, "The KV pool of 10000000000000001", id="pool-over-64-bits"),
    ],
)
def test_more_than_the_machine_has_is_refused(flags: dict[str, Any], words: str) -> None:
    config = EngineConfig(model=str(resolve_model("nano")), device="cpu", load_format="dummy", **flags)
    with pytest.raises(ConfigError, match=words):
        load_engine(config, lambda stage, percent: None)
