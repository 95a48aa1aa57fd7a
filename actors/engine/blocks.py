"""Which KV blocks are free, and what lies in those whose contents are worth finding again. The scheduler allocates,
shares and frees here; the runner only sees the ids in block tables.

A full block can be published under the hash of its tokens and all before them (actors/engine/block_hashes.py). It can
then be found, and shared, also after its last owner has freed it, until its memory is needed: of the free blocks, those
that say nothing are taken first, then the ones that were freed longest ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import final

from protocol.kv import BlockHash


@final
class BlockPool:
    """`num_blocks` blocks of `block_size` token positions each, with ids from 0."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Raises ValueError for a pool without blocks or with blocks without positions."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a block pool needs blocks and positions, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._num_owners = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # free; a stack: the block freed last is the warmest
        self._idle: OrderedDict[int, None] = OrderedDict()  # free and published, the one that goes first in front
        self._by_hash: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the KV of this many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks to write to. Raises ValueError, and takes none, if fewer are free."""
        if not 0 <= count <= self.num_free:
            raise ValueError(f"cannot allocate {count} blocks: {self.num_free} of {self.num_blocks} are free")
        blocks = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block in blocks:
            self._num_owners[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give up a sequence's blocks, in the order of its tokens.

        The last ones are evicted first, since they are of use only together with those before them. Raises ValueError
        for a block that nobody owns (those after it are free by then).
        """
        for block in reversed([*blocks]):
            if not 0 <= block < self.num_blocks or not self._num_owners[block]:
                raise ValueError(f"block {block} is not allocated, so it cannot be freed")
            self._num_owners[block] -= 1
            if self._num_owners[block] == 0:
                if block in self._hash_of:
                    self._idle[block] = None
                else:
                    self._blank.append(block)

    # -------------------------------------------------------------------------------- published blocks

    def find(self, hashes: Sequence[BlockHash]) -> list[int]:
        """The blocks that hold the beginning of this chain, as far as they are there. Takes none of them."""
        found: list[int] = []
        for block_hash in hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def published(self) -> list[BlockHash]:
        """Under which blocks are found, in the order in which they became so."""
        return list(self._by_hash)

    def block_with(self, block_hash: BlockHash) -> int | None:
        """The block that is found under it."""
        return self._by_hash.get(block_hash)

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of these found blocks have no owner, so that sharing them makes fewer free."""
        return sum(block in self._idle for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Become one more owner of found blocks, to read them."""
        for block in blocks:
            assert block in self._hash_of, f"block {block} is not published, so it cannot be shared"
            self._idle.pop(block, None)
            self._num_owners[block] += 1

    def publish(self, block: int, block_hash: BlockHash) -> None:
        """The block is full, has been computed, and will not be written again before it is free.

        Nothing happens if another one with the same contents is known: that one goes on being found.
        """
        assert self._num_owners[block], f"block {block} has no owner who could have filled it"
        if block_hash not in self._by_hash:
            assert block not in self._hash_of, f"block {block} is published already"
            self._by_hash[block_hash] = block
            self._hash_of[block] = block_hash

    def retract(self, blocks: Iterable[int]) -> None:
        """What lies in these blocks, which have owners, is not to be trusted: nobody finds them again."""
        for block in blocks:
            assert self._num_owners[block], f"block {block} has no owner"
            block_hash = self._hash_of.pop(block, None)
            if block_hash is not None:
                del self._by_hash[block_hash]

    def forget(self) -> None:
        """What lies in free blocks is not found again."""
        for block in self._idle:
            del self._by_hash[self._hash_of.pop(block)]
        self._blank.extend(self._idle)
        self._idle.clear()

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        del self._by_hash[self._hash_of.pop(block)]
        return block

    def __repr__(self) -> str:
        return (
            f"<BlockPool {self.num_free} of {self.num_blocks} blocks free, {self.block_size} tokens each, "
            f"{len(self._hash_of)} published>"
        )
