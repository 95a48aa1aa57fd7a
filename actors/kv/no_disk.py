"""Where blocks go that no disk is to keep: nowhere. Used by actors/kv/tenancy."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from protocol.kv import BlockHash


@final
class NoDisk:
    """Fulfils actors.kv.sources.Blocks."""

    is_used = False

    def has(self, block_hash: BlockHash) -> bool:
        return False

    def want(self, block_hash: BlockHash) -> None:
        raise AssertionError("there is nothing to be wanted here")

    def offer(self, block_hash: BlockHash) -> None:
        pass

    def touch(self, block_hash: BlockHash) -> None:
        pass

    def reset(self, done: Callable[[], None]) -> None:
        done()
