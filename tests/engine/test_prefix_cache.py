from __future__ import annotations

import hashlib

import pytest

from tamis.config import BLOCK_TOKENS
from tamis.engine.prefix_cache import HashChain, PrefixCache, block_hash

TOKENS = list(range(3 * BLOCK_TOKENS))
BLOCK = TOKENS[:BLOCK_TOKENS]


def test_a_name_is_sha256_over_parent_and_tokens() -> None:
    tokens = b"".join(token.to_bytes(4, "little") for token in BLOCK)
    assert block_hash(b"p" * 32, BLOCK) == hashlib.sha256(b"p" * 32 + tokens).digest()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(block_hash(bytes(32), [*BLOCK[:-1], 9]), id="last token"),
        pytest.param(block_hash(b"\1" * 32, BLOCK), id="parent"),
        pytest.param(block_hash(bytes(32), BLOCK, ["media"]), id="extra key"),
        pytest.param(block_hash(bytes(32), BLOCK, [""]), id="empty extra key"),
    ],
)
def test_a_name_depends_on(other: bytes) -> None:
    assert other != block_hash(bytes(32), BLOCK)


def test_extra_keys_are_kept_apart() -> None:
    assert block_hash(bytes(32), BLOCK, ["ab", "c"]) != block_hash(bytes(32), BLOCK, ["a", "bc"])


def test_a_chain_names_a_block_by_all_that_stands_before_it() -> None:
    changed = [7, *TOKENS[1:]]
    one, two = HashChain().extend(TOKENS, 3), HashChain().extend(changed, 3)
    assert [a == b for a, b in zip(one, two, strict=True)] == [False, False, False]
    assert HashChain().extend(TOKENS[:BLOCK_TOKENS] + changed[BLOCK_TOKENS:], 3) == one


def test_chains_of_different_salt_share_nothing() -> None:
    names = [HashChain(keys).extend(TOKENS, 1)[0] for keys in ((), ("salt=",), ("salt=a",), ("salt=a", "lora=b"))]
    assert len(set(names)) == 4


def test_each_block_is_hashed_once() -> None:
    chain = HashChain()
    first = chain.extend(TOKENS, 2)[:2]
    # Blocks that have a name are not looked at again: poison in their place changes nothing.
    poisoned = [0] * (2 * BLOCK_TOKENS) + TOKENS[2 * BLOCK_TOKENS :]
    assert chain.extend(poisoned, 3) == [*first, *HashChain().extend(TOKENS, 3)[2:]]


def test_salts_may_hold_any_string() -> None:
    assert len(block_hash(bytes(32), BLOCK, ["\ud800 ü"])) == 32


def test_lookup_stops_at_the_first_gap() -> None:
    cache = PrefixCache()
    cache.insert(b"a", 1)
    cache.insert(b"c", 3)
    assert cache.lookup([b"a", b"b", b"c"], 3) == [1]
    assert cache.lookup([b"a", b"b", b"c"], 0) == []


def test_the_first_block_of_a_name_keeps_it() -> None:
    cache = PrefixCache()
    cache.insert(b"a", 1)
    cache.insert(b"a", 2)
    cache.forget(2)
    assert cache.lookup([b"a"], 1) == [1]
    cache.forget(1)
    assert cache.lookup([b"a"], 1) == []
    assert len(cache) == 0
