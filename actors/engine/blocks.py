"""Which KV blocks are free. The scheduler allocates and frees here; the runner only sees the ids in block tables.

A block has one owner. Sharing (prefix caching) would give each block a reference count, a content hash and a place in
an eviction order; callers would not change: they allocate a number of blocks and free a list of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class BlockPool:
    """`num_blocks` blocks of `block_size` token positions each, with ids from 0."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Raises ValueError for a pool without blocks or with blocks without positions."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a block pool needs blocks and positions, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block freed last is the warmest
        self._is_allocated = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the KV of this many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks. Raises ValueError, and takes none, if fewer are free."""
        if not 0 <= count <= len(self._free):
            raise ValueError(f"cannot allocate {count} blocks: {len(self._free)} of {self.num_blocks} are free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._is_allocated[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back. Raises ValueError for one that is not allocated (those before it are free by then)."""
        for block in blocks:
            if not 0 <= block < self.num_blocks or not self._is_allocated[block]:
                raise ValueError(f"block {block} is not allocated, so it cannot be freed")
            self._is_allocated[block] = 0
            self._free.append(block)

    def __repr__(self) -> str:
        return f"<BlockPool {self.num_free} of {self.num_blocks} blocks free, {self.block_size} tokens each>"
