"""Where blocks are that are not in memory: what a connector asks of the disk and of its peers, without waiting for
either. Used by actors/kv/finds and actors/kv/connector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from protocol.kv import BlockHash, FindId


class Blocks(Protocol):
    """The disk, for which nobody here waits: actors.kv.disk."""

    @property
    def is_used(self) -> bool: ...
    def has(self, block_hash: BlockHash) -> bool: ...
    def want(self, block_hash: BlockHash) -> None: ...
    def offer(self, block_hash: BlockHash) -> None: ...
    def touch(self, block_hash: BlockHash) -> None: ...
    def reset(self, done: Callable[[], None]) -> None: ...


class Fetches(Protocol):
    """What the peers are asked for: actors.kv.fetching. Nothing here waits."""

    def begin(self, find_id: FindId, ticket: bytes, hashes: Sequence[BlockHash]) -> None:
        """Ends with `end_fetch` or `fail_fetch`, if it is not stopped before."""

    def stop(self, find_id: FindId) -> None:
        """Nothing comes of it any more, and its frames are given back."""

    def decline(self, ticket: bytes) -> None:
        """Nobody here needs what it promises."""
