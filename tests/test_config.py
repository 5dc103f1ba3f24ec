from __future__ import annotations

import pytest

from tamis.config import EngineConfig
from tamis.errors import ConfigError


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**70])
def test_a_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ConfigError, match=f"--seed is {seed}, but must be a 64-bit integer"):
        EngineConfig(seed=seed)


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 0])
def test_a_seed_of_64_bits_is_taken(seed: int) -> None:
    assert EngineConfig(seed=seed).seed == seed
