from __future__ import annotations

import pytest

from tamis.engine.block_pool import NULL_BLOCK, BlockPool
from tamis.engine.prefix_cache import PrefixCache


def pool_of(num_blocks: int) -> tuple[BlockPool, PrefixCache]:
    cache = PrefixCache()
    return BlockPool(num_blocks, cache), cache


def counters(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free_blocks, pool.num_cached_blocks, pool.num_used_blocks


def test_every_block_but_the_null_block_is_given_out_once() -> None:
    pool, _ = pool_of(5)
    blocks = pool.allocate(5)
    assert sorted(blocks) == [1, 2, 3, 4, 5]
    assert NULL_BLOCK not in blocks


def test_more_blocks_than_are_free_is_an_error_and_takes_none() -> None:
    pool, _ = pool_of(3)
    pool.allocate(2)
    with pytest.raises(RuntimeError, match="2 blocks were asked for, but only 1 are free"):
        pool.allocate(2)
    assert counters(pool) == (1, 0, 2)


def test_a_shared_block_is_free_when_its_last_reference_goes() -> None:
    pool, _ = pool_of(2)
    [block] = pool.allocate(1)
    pool.acquire(block)
    pool.free([block])
    assert not pool.is_free(block)
    pool.free([block])
    assert pool.is_free(block)


def test_freeing_a_free_block_is_an_error() -> None:
    pool, _ = pool_of(2)
    [block] = pool.allocate(1)
    pool.free([block])
    with pytest.raises(RuntimeError, match=f"block {block} was freed once too often"):
        pool.free([block])


def test_counters_follow_a_named_block_through_its_life() -> None:
    pool, cache = pool_of(4)
    [block] = pool.allocate(1)
    cache.insert(b"name", block)
    assert counters(pool) == (3, 0, 1)
    pool.free([block])
    assert counters(pool) == (4, 1, 0)
    pool.acquire(block)
    assert counters(pool) == (3, 0, 1)
    pool.free([block])
    pool.allocate(4)
    assert counters(pool) == (0, 0, 4)
    assert cache.lookup([b"name"], 1) == []


def test_the_last_blocks_of_a_table_are_reused_before_its_first() -> None:
    pool, cache = pool_of(3)
    table = pool.allocate(3)
    for index, block in enumerate(table):
        cache.insert(bytes([index]), block)
    pool.free(table)
    assert pool.allocate(3) == table[::-1]


def test_cached_blocks_are_reused_in_the_order_in_which_they_were_last_used() -> None:
    pool, cache = pool_of(3)
    a, b, c = pool.allocate(3)
    for block in (a, b, c):
        cache.insert(bytes([block]), block)
        pool.free([block])
    pool.acquire(a)
    pool.free([a])
    assert pool.allocate(3) == [b, c, a]


def test_unnamed_blocks_are_reused_before_named_ones() -> None:
    pool, cache = pool_of(2)
    named, unnamed = pool.allocate(2)
    cache.insert(b"name", named)
    pool.free([named])
    pool.free([unnamed])
    assert pool.allocate(1) == [unnamed]


def test_clearing_forgets_names_and_keeps_blocks() -> None:
    pool, cache = pool_of(2)
    [block] = pool.allocate(1)
    cache.insert(b"name", block)
    pool.free([block])
    pool.clear_prefix_cache()
    assert counters(pool) == (2, 0, 0)
    assert len(cache) == 0


def test_the_audit_counts_blocks_that_no_table_names() -> None:
    pool, _ = pool_of(5)
    a, b = pool.allocate(2)
    assert pool.count_leaked([[a], [b]]) == 0
    assert pool.count_leaked([[a]]) == 1
    assert pool.count_leaked([]) == 2
    pool.acquire(a)
    assert pool.count_leaked([[a], [b]]) == 1
    assert pool.count_leaked([[a], [a, b]]) == 0


def test_the_audit_refuses_a_table_that_names_what_it_does_not_own() -> None:
    pool, _ = pool_of(3)
    [block] = pool.allocate(1)
    with pytest.raises(RuntimeError, match=f"block {block} has 1 references, but 2 tables name it"):
        pool.count_leaked([[block], [block]])
    with pytest.raises(RuntimeError, match="null block"):
        pool.count_leaked([[NULL_BLOCK]])
