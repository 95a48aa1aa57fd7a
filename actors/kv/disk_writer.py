"""Writes blocks to the disk behind their saving, a batch at a time. Used by actors/kv/disk.

What is to be written waits as a name only: a block that is given up by memory before its turn is not written. So the
queue takes no memory, and saving never waits for it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, final

import trio

from actors.kv.disk_desk import BlockFile, InThread
from actors.kv.disk_file import Writing, Written
from actors.kv.disk_index import DiskIndex
from actors.kv.frames import Frames, Pin
from actors.kv.window import Window
from protocol.kv import BlockHash

MOST_BATCH_BLOCKS = 64
MOST_BATCH_BYTES = 32 * 2**20
"""Of a batch, whose frames are pinned as long as it takes."""


class _Batch(NamedTuple):
    writings: list[Writing]
    frames: list[int]


@final
class DiskWriter:
    """Of one window."""

    def __init__(
        self, window: Window, frames: Frames, most_bytes: int, in_thread: InThread, limiter: trio.CapacityLimiter
    ) -> None:
        """The file, with those of other layouts, is to have `most_bytes` at most."""
        self._window = window
        self._frames = frames
        self._most_bytes = most_bytes
        self._in_thread = in_thread
        self._limiter = limiter
        self._waiting: OrderedDict[BlockHash, None] = OrderedDict()
        self._most_blocks = max(1, min(MOST_BATCH_BLOCKS, MOST_BATCH_BYTES // window.frame_bytes))

    @property
    def is_due(self) -> bool:
        """Blocks are still to be written."""
        return bool(self._waiting)

    def offer(self, block_hash: BlockHash) -> None:
        self._waiting[block_hash] = None
        if len(self._waiting) > self._window.num_frames:
            self._waiting.popitem(last=False)

    def forget(self) -> None:
        """Nothing of what was offered is to be written."""
        self._waiting.clear()

    async def write_some(self, file: BlockFile, index: DiskIndex) -> None:
        """The next batch, behind what has changed in the index. Raises OSError."""
        # Cancelled from now on, a thread has the batch already: none is taken and then not written.
        await trio.lowlevel.checkpoint_if_cancelled()
        changed, lost = index.take_changes()
        before = index.end
        batch = self._next_batch(index)
        if not (batch.writings or changed or lost):
            return
        room = None if index.end == before else index.end

        def write() -> Written:
            try:
                file.note(changed, lost)
                if room is not None:
                    file.make_room(room, self._most_bytes)
            except OSError as error:
                return Written([], error)
            return file.write(batch.writings)

        written = await self._in_thread(write, self._limiter)
        for number, one in reversed(list(enumerate(batch.writings))):
            if number < len(written.checksums):
                index.end_write(one.slot, one.block_hash, written.checksums[number], one.stamp)
            else:
                index.fail_write(one.slot)
        self._frames.unpin(batch.frames, Pin.USE)
        if written.error is not None:
            raise written.error

    def _next_batch(self, index: DiskIndex) -> _Batch:
        """Of a chain the last ones count as used before the first ones, and so are overwritten before."""
        places: list[tuple[int, BlockHash]] = []
        frames: list[int] = []
        while self._waiting and len(frames) < self._most_blocks:
            block_hash, _ = self._waiting.popitem(last=False)
            frame = self._frames.peek(block_hash)
            if frame is None or (slot := index.begin_write(block_hash)) is None:
                continue
            self._frames.pin(frame, Pin.USE)
            places.append((slot, block_hash))
            frames.append(frame)
        stamps = [index.next_stamp() for _ in places]
        writings = [
            Writing(slot, block_hash, self._window.frame(frame), stamp)
            for (slot, block_hash), frame, stamp in zip(places, frames, reversed(stamps), strict=True)
        ]
        return _Batch(writings, frames)
