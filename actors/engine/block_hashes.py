"""The names under which full KV blocks are found again: one hash per block, over its tokens and all that came before.

A chain, so that equal hashes mean equal prefixes. Of a cryptographic hash, so that nobody can craft a prompt that finds
another one's blocks. The same in every process: engines may compare theirs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import final

from protocol.kv import BlockHash
from protocol.lora import NO_LORA, LoraId

_NO_SALT = BlockHash(b"")


@final
class BlockHashes:
    """The chain of one sequence; grows with its tokens."""

    __slots__ = ("_hashes", "_salt", "block_size")

    def __init__(self, block_size: int, cache_salt: str, lora_id: LoraId = NO_LORA) -> None:
        """Sequences with different salts or adapters never share a block."""
        self.block_size = block_size
        self._salt = BlockHash(sha256(cache_salt.encode()).digest()) if cache_salt else _NO_SALT
        if lora_id != NO_LORA:
            self._salt = BlockHash(sha256(b"lora" + lora_id.to_bytes(8) + self._salt).digest())
        self._hashes: list[BlockHash] = []

    def __len__(self) -> int:
        """Blocks that have a hash."""
        return len(self._hashes)

    def __getitem__(self, index: int) -> BlockHash:
        return self._hashes[index]

    def first(self, count: int) -> list[BlockHash]:
        """Of so many blocks, that have a hash."""
        return self._hashes[:count]

    def up_to(self, token_ids: Sequence[int], num_tokens: int) -> list[BlockHash]:
        """Of every block that the first `num_tokens` of a sequence's tokens fill. Tokens once seen must not change."""
        hashes, size = self._hashes, self.block_size
        num_blocks = num_tokens // size
        for start in range(len(hashes) * size, num_blocks * size, size):
            parent = hashes[-1] if hashes else self._salt
            hashes.append(BlockHash(sha256(parent + array("i", token_ids[start : start + size]).tobytes()).digest()))
        return hashes[:num_blocks]
