"""Which published blocks are still to be copied into the connector's frames, and which it has. Pure; the scheduler asks
for what its next plan is to save. Used by actors/engine/kv_side.

Blocks are known by their hashes only: one that has been evicted before its turn is not in the pool any more under its
hash, and is left out. One that the very plan evicts which saves it is saved: a plan's saves come before all it writes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

from actors.engine.blocks import BlockPool
from protocol.kv import BlockHash
from protocol.step import KvCopy

MOST_PER_PLAN = 32
"""Blocks that a plan saves beside its rows, unless somebody waits for them."""
LEAST_REMEMBERED = 1 << 16
"""Blocks that are known to be saved; or as many as four windows have frames. What is forgotten is saved again."""


class Save(NamedTuple):
    """One block on its way into a frame."""

    copy: KvCopy
    block_hash: BlockHash


@final
class KvSaves:
    """Of one connection to a connector; a new one begins with all that the pool has."""

    def __init__(self, pool: BlockPool, num_frames: int) -> None:
        self._pool = pool
        self._num_frames = num_frames
        self._granted: deque[int] = deque()
        self._queue: OrderedDict[BlockHash, None] = OrderedDict(dict.fromkeys(pool.published()))
        self._in_flight: dict[BlockHash, int] = {}
        """The frames that plans write, which are not committed yet."""
        self._saved: OrderedDict[BlockHash, None] = OrderedDict()
        self._most_saved = max(LEAST_REMEMBERED, 4 * num_frames)

    @property
    def is_due(self) -> bool:
        """Something may be saved by the next plan."""
        return bool(self._queue and self._granted)

    def has(self, block_hash: BlockHash) -> bool:
        """The connector was given it, and has not been found without it since."""
        return block_hash in self._saved

    def is_coming(self, block_hash: BlockHash) -> bool:
        """It will be saved by this or a later plan, if it stays in the pool; it is queued for that if need be."""
        if block_hash in self._in_flight:
            return True
        if self._pool.block_with(block_hash) is None:
            self._queue.pop(block_hash, None)
            return False
        self._queue[block_hash] = None
        return True

    def grant(self, frames: Iterable[int]) -> None:
        """These may be written, each once."""
        self._granted.extend(frame for frame in frames if 0 <= frame < self._num_frames)

    def note(self, block_hash: BlockHash) -> None:
        """A block was published."""
        if block_hash not in self._saved and block_hash not in self._in_flight:
            self._queue[block_hash] = None

    def hurry(self, hashes: Sequence[BlockHash]) -> None:
        """Somebody waits for these: they go first."""
        for block_hash in reversed(hashes):
            if block_hash in self._queue:
                self._queue.move_to_end(block_hash, last=False)

    def take(self, most: int) -> list[Save]:
        """For a plan that is being made, before any block of the pool is given away by it."""
        saves: list[Save] = []
        while self._queue and self._granted and len(saves) < most:
            block_hash, _ = self._queue.popitem(last=False)
            block = self._pool.block_with(block_hash)
            if block is not None and block_hash not in self._saved and block_hash not in self._in_flight:
                frame = self._granted.popleft()
                self._in_flight[block_hash] = frame
                saves.append(Save(KvCopy(block, frame), block_hash))
        return saves

    def put_back(self, saves: Sequence[Save]) -> None:
        """They were taken for a plan that was not made."""
        for copy, block_hash in reversed(saves):
            del self._in_flight[block_hash]
            self._granted.appendleft(copy.frame)
            self._queue[block_hash] = None
            self._queue.move_to_end(block_hash, last=False)

    def commit(self, saves: Iterable[Save]) -> tuple[list[int], list[BlockHash | None]]:
        """The plan is done: which frames hold which blocks now. None: one that is not to be trusted."""
        frames: list[int] = []
        hashes: list[BlockHash | None] = []
        for copy, block_hash in saves:
            is_sound = self._in_flight.get(block_hash) == copy.frame
            if is_sound:
                del self._in_flight[block_hash]
                self._remember(block_hash)
            frames.append(copy.frame)
            hashes.append(block_hash if is_sound else None)
        return frames, hashes

    def learn(self, block_hash: BlockHash) -> None:
        """It was loaded from there."""
        self._queue.pop(block_hash, None)
        self._remember(block_hash)

    def unlearn(self, hashes: Iterable[BlockHash]) -> None:
        """They were not found there: computed again, they are saved again."""
        for block_hash in hashes:
            self._saved.pop(block_hash, None)

    def retract(self, hashes: Iterable[BlockHash]) -> None:
        """What was computed under these is not to be trusted: what is not told yet is not told."""
        for block_hash in hashes:
            self._queue.pop(block_hash, None)
            self._in_flight.pop(block_hash, None)
            self._saved.pop(block_hash, None)

    def reset(self) -> None:
        """What was computed until now is not to be found again."""
        self._queue.clear()
        self._in_flight.clear()
        self._saved.clear()

    def _remember(self, block_hash: BlockHash) -> None:
        self._saved[block_hash] = None
        self._saved.move_to_end(block_hash)
        if len(self._saved) > self._most_saved:
            self._saved.popitem(last=False)

    def __repr__(self) -> str:
        return f"<KvSaves {len(self._queue)} waiting, {len(self._granted)} frames, {len(self._saved)} saved>"
