"""Loading refuses what the machine cannot give, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tamis.config import AttentionConfig, EngineConfig
from tamis.errors import ConfigError
from tamis.frontend.model_path import resolve_model
from tamis.models.config import parse_config
from tamis.models.quantization_writer import TARGETS
from tamis.runner.load import cache_formats, load_engine
from tests.runner.small_checkpoint import CONFIG


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


@pytest.mark.parametrize(
    ("target", "flags", "contract"),
    [
        ("m3.1", {"kv_cache_dtype": "nvfp4"}, "e4m3"),
        ("m3.1", {"kv_cache_dtype": "bfloat16"}, "exact"),
        ("m3.1", {"kv_cache_dtype": "nvfp4", "attention_config": AttentionConfig(dequant_contract="exact")}, "exact"),
        ("modelopt", {"kv_cache_dtype": "nvfp4"}, "exact"),
        ("bf16", {"kv_cache_dtype": "nvfp4"}, "exact"),
    ],
)
def test_the_contract_is_what_the_checkpoint_was_trained_with(
    target: str, flags: dict[str, Any], contract: str
) -> None:
    experts, others = TARGETS[target]
    model_config = parse_config(CONFIG).with_formats(others, experts)
    config = EngineConfig(model="nowhere", **flags)
    assert cache_formats(config, model_config)[2] == contract
