"""Which block holds which prefix: a SHA-256 chain over full blocks, shared between requests.

Block i of a sequence is named by `hash(name of block i−1, its 128 token ids, its extra keys)`, so that equal names
mean equal tokens at equal positions under equal keys. A partial block has no name and is never shared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from tamis.config import BLOCK_TOKENS


def block_hash(parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[str] = ()) -> bytes:
    """The 32-byte name of a full block.

    Args:
        parent: name of the block before, or a chain's root (32 bytes).
        token_ids: the block's `BLOCK_TOKENS` ids, each in [0, 2**32).
        extra_keys: what else its content depends on (a media hash); order matters.
    """
    digest = hashlib.sha256(parent)
    digest.update(array("I", token_ids))
    for key in extra_keys:
        # Length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
        data = key.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "little"))
        digest.update(data)
    return digest.digest()


class HashChain:
    """The block names of one growing sequence; each block is hashed once.

    Args:
        root_keys: what every block depends on: salt, LoRA id.

    Attributes:
        hashes: names of the full blocks hashed so far, in order.
    """

    __slots__ = ("_root", "hashes")

    def __init__(self, root_keys: Sequence[str] = ()):
        self._root = block_hash(bytes(32), (), root_keys)
        self.hashes: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """Names of at least the first `num_blocks` blocks of `token_ids` (which must hold that many full blocks).

        `token_ids` must begin with what it began with at earlier calls.
        """
        hashes = self.hashes
        for index in range(len(hashes), num_blocks):
            start = index * BLOCK_TOKENS
            parent = hashes[-1] if hashes else self._root
            hashes.append(block_hash(parent, token_ids[start : start + BLOCK_TOKENS]))
        return hashes


class PrefixCache:
    """Block names of the pool's blocks, both ways. At most one block carries a name."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._hash_of)

    def __contains__(self, block: int) -> bool:
        return block in self._hash_of

    def lookup(self, hashes: Sequence[bytes], num_blocks: int) -> list[int]:
        """Blocks of the longest cached prefix of the first `num_blocks` names."""
        blocks: list[int] = []
        for index in range(num_blocks):
            block = self._block_of.get(hashes[index])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def insert(self, name: bytes, block: int) -> None:
        """Name a block; when another block carries the name already, nothing changes."""
        if name not in self._block_of:
            self._block_of[name] = block
            self._hash_of[block] = name

    def forget(self, block: int) -> None:
        """The block is about to be written anew; unnamed blocks are fine."""
        name = self._hash_of.pop(block, None)
        if name is not None:
            del self._block_of[name]

    def clear(self) -> None:
        """Forget every name."""
        self._block_of.clear()
        self._hash_of.clear()
