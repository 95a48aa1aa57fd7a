"""Reads blocks from the disk into frames, when they are wanted. Used by actors/kv/disk."""

from __future__ import annotations

import functools
import logging
import math
from pathlib import Path
from typing import final

import trio

from actors.kv.disk_desk import BlockFile, InThread, ReadDesk
from actors.kv.disk_index import DiskIndex
from actors.kv.window import Window
from protocol.kv import BlockHash

NUM_READERS = 2
OPENING_SECONDS = 2.0
"""Until then it is not known what the disk has: what is wanted waits for it."""
HANGING_SECONDS = 3.0
"""For one block; then nobody waits for the disk until it has come."""

logger = logging.getLogger("trillm.kv")


@final
class DiskReader:
    """Of one window. A hung disk has its threads, and nothing more."""

    def __init__(self, directory: Path, window: Window, in_thread: InThread) -> None:
        self._directory = directory
        self._window = window
        self._in_thread = in_thread
        self._limiter = trio.CapacityLimiter(NUM_READERS)
        self._want, self._wanted = trio.open_memory_channel[BlockHash](math.inf)
        self._reading_since: dict[BlockHash, float] = {}
        self._file: BlockFile | None = None
        self._index = DiskIndex(0)
        self._is_opening = True
        self._opened = trio.Event()
        self._has_failed = False
        self.num_failures = 0

    def read_from(self, file: BlockFile | None, index: DiskIndex) -> None:
        """From now on. None: there is nothing to be read."""
        self._file, self._index = file, index

    def opened(self) -> None:
        """It has been, or cannot be."""
        self._opened.set()

    @property
    def is_used(self) -> bool:
        """Blocks may be there."""
        return self._is_opening or self._file is not None

    def has(self, block_hash: BlockHash) -> bool:
        """And could be had: not while the disk hangs. While it is being opened nobody knows:
        what is wanted then turns out to be there or not."""
        return self._is_opening or (self._file is not None and block_hash in self._index and not self._hangs)

    def want(self, block_hash: BlockHash) -> None:
        """The desk's `begin_read` and `end_read` are called once it is its turn."""
        self._want.send_nowait(block_hash)

    @property
    def _hangs(self) -> bool:
        return any(trio.current_time() > since + HANGING_SECONDS for since in self._reading_since.values())

    async def run(self, desk: ReadDesk) -> None:
        """Until cancelled."""
        with trio.move_on_after(OPENING_SECONDS):
            await self._opened.wait()
        self._is_opening = False
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_READERS):
                nursery.start_soon(self._keep_reading, desk)

    async def _keep_reading(self, desk: ReadDesk) -> None:
        async for block_hash in self._wanted:
            index, file = self._index, self._file
            record = None if file is None else index.begin_read(block_hash)
            if file is None or record is None:
                desk.end_read(block_hash, None, is_there=False)
                continue
            if (frame := desk.begin_read(block_hash)) is None:
                index.end_read(record, is_sound=True)
                continue
            is_sound = False
            self._reading_since[block_hash] = trio.current_time()
            try:
                read = functools.partial(file.read, record, self._window.frame(frame))
                is_sound = await self._in_thread(read, self._limiter)
                if not is_sound and index is self._index:
                    raise OSError(f"a block in {self._directory} is not what was written there")
            except OSError as error:
                self._failed(error)
            finally:
                self._reading_since.pop(block_hash, None)
            index.end_read(record, is_sound=is_sound)
            desk.end_read(block_hash, frame, is_there=is_sound)

    def _failed(self, error: OSError) -> None:
        self.num_failures += 1
        if not self._has_failed:
            self._has_failed = True
            logger.warning("a KV block cannot be read: %s; such blocks are computed, and not told of again", error)
