"""Block tables over the pool: what a request holds, what it shares, what it still needs."""

from __future__ import annotations

from collections.abc import Iterable

from tamis.config import BLOCK_TOKENS
from tamis.engine.block_pool import BlockPool
from tamis.engine.prefix_cache import PrefixCache
from tamis.engine.request import Request


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


class BlockTables:
    """Grows, shares and releases requests' block tables.

    Args:
        num_blocks: of the pool, the null block not counted.
        share_prefixes: False turns the prefix cache off.
    """

    def __init__(self, num_blocks: int, *, share_prefixes: bool):
        self._prefix_cache = PrefixCache()
        self.pool = BlockPool(num_blocks, self._prefix_cache)
        self._share_prefixes = share_prefixes

    def find_prefix(self, request: Request) -> list[int]:
        """Cached blocks of the request's tokens, never all of them: its last token must be computed to go on."""
        if not self._share_prefixes:
            return []
        num_blocks = (len(request.token_ids) - 1) // BLOCK_TOKENS
        hashes = request.hash_chain.extend(request.token_ids, num_blocks)
        return self._prefix_cache.lookup(hashes, num_blocks)

    def blocks_to_admit(self, request: Request, prefix: list[int]) -> int:
        """Free blocks that the request will take for the tokens it has now, given its cached prefix."""
        revived = sum(map(self.pool.is_free, prefix))
        return blocks_for(len(request.token_ids)) - len(prefix) + revived

    def blocks_to_prefill(self, requests: Iterable[Request]) -> int:
        """Free blocks that admitted requests will yet take for the tokens they had at admission."""
        return sum(max(0, blocks_for(r.num_prefill_tokens) - len(r.block_table)) for r in requests)

    def attach_prefix(self, request: Request, prefix: list[int]) -> None:
        """Start an empty block table with the blocks that `find_prefix` gave; their tokens count as computed."""
        for block in prefix:
            self.pool.acquire(block)
        request.block_table = prefix
        request.num_named_blocks = len(prefix)
        request.num_computed_tokens = len(prefix) * BLOCK_TOKENS

    def missing(self, request: Request, num_tokens: int) -> int:
        """Blocks that the request lacks to hold so many tokens."""
        return max(0, blocks_for(num_tokens) - len(request.block_table))

    def grow(self, request: Request, num_blocks: int) -> list[int]:
        """Append free blocks to the table and return them; the pool must have them."""
        blocks = self.pool.allocate(num_blocks)
        request.block_table += blocks
        return blocks

    def name_blocks(self, request: Request, num_tokens: int) -> None:
        """Offer the full blocks among the first `num_tokens` tokens to other requests.

        Those tokens must be known, and their rows written by the plans made so far.
        """
        num_blocks = num_tokens // BLOCK_TOKENS
        if not self._share_prefixes or num_blocks <= request.num_named_blocks:
            return
        hashes = request.hash_chain.extend(request.token_ids, num_blocks)
        for index in range(request.num_named_blocks, num_blocks):
            self._prefix_cache.insert(hashes[index], request.block_table[index])
        request.num_named_blocks = num_blocks

    def release(self, request: Request) -> None:
        """Give up the whole table. Steps run in order, so blocks may go while a planned step still writes them."""
        self.pool.free(request.block_table)
        request.block_table = []
        request.num_named_blocks = 0
        request.num_computed_tokens = 0
