"""The pool of cache blocks: reference counts and a free list in least-recently-used order.

Block 0 is the null block: the runner writes padding there, nobody ever owns it. A block whose last reference goes
keeps its content and, when the prefix cache knows it, its name: it is *cached* and *free* at once, may be acquired
again, and loses its name only when it is allocated anew.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from tamis.engine.prefix_cache import PrefixCache

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 … `num_blocks`.

    Args:
        num_blocks: blocks that can be given out (the null block not counted).
        prefix_cache: told when a named block is about to be overwritten.
    """

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache):
        self.num_blocks = num_blocks
        self._prefix_cache = prefix_cache
        self._ref_counts = [0] * (num_blocks + 1)
        # An OrderedDict is a linked list with an index: both ends and any middle element go in O(1).
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self._num_cached = 0
        self._num_references = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated, cached ones included."""
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that still hold a named prefix."""
        return self._num_cached

    @property
    def num_used_blocks(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - len(self._free)

    @property
    def num_references(self) -> int:
        """The sum of all reference counts."""
        return self._num_references

    def is_free(self, block: int) -> bool:
        """Whether nobody refers to the block."""
        return self._ref_counts[block] == 0

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, least recently used first, each with one reference; their names are forgotten.

        Raises:
            RuntimeError: fewer are free. Callers check `num_free_blocks` first.
        """
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks were asked for, but only {len(self._free)} are free")
        blocks = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            if block in self._prefix_cache:
                self._prefix_cache.forget(block)
                self._num_cached -= 1
            self._ref_counts[block] = 1
            blocks.append(block)
        self._num_references += count
        return blocks

    def acquire(self, block: int) -> None:
        """One more reference to a block whose content is wanted as it is; it may be free."""
        if self._ref_counts[block] == 0:
            del self._free[block]
            if block in self._prefix_cache:
                self._num_cached -= 1
        self._ref_counts[block] += 1
        self._num_references += 1

    def free(self, block_table: Sequence[int]) -> None:
        """Drop one reference to each block of a request's table.

        The table's last blocks are reused before its first: a prefix is worth the more the shorter it is. Blocks
        without a name are reused before all others, for nothing is lost with them.

        Raises:
            RuntimeError: a block has no reference to drop.
        """
        for block in reversed(block_table):
            count = self._ref_counts[block] - 1
            if count < 0:
                raise RuntimeError(f"block {block} was freed once too often")
            self._ref_counts[block] = count
            self._num_references -= 1
            if count == 0:
                self._free[block] = None
                if block in self._prefix_cache:
                    self._num_cached += 1
                else:
                    self._free.move_to_end(block, last=False)

    def clear_prefix_cache(self) -> None:
        """Forget every name, because the blocks' contents are no longer to be trusted."""
        self._prefix_cache.clear()
        self._num_cached = 0

    def count_leaked(self, live_block_tables: Iterable[Sequence[int]]) -> int:
        """Blocks with more references than live tables that name them; O(pool + tables).

        Raises:
            RuntimeError: fewer references than tables, or a free list that contradicts the reference counts.
        """
        expected: Counter[int] = Counter()
        for table in live_block_tables:
            expected.update(table)
        if expected[NULL_BLOCK]:
            raise RuntimeError("a live block table names the null block")
        leaked = 0
        for block in range(1, self.num_blocks + 1):
            count = self._ref_counts[block]
            if count < expected[block]:
                raise RuntimeError(f"block {block} has {count} references, but {expected[block]} tables name it")
            if (count == 0) != (block in self._free):
                raise RuntimeError(f"block {block} has {count} references, but the free list says otherwise")
            leaked += count > expected[block]
        return leaked
