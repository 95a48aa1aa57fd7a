"""The blocks on the disk, for one window: read into frames when they are wanted, written behind when they are saved.
The event loop never waits for a disk; worker threads do, and a hung one costs what it holds and nothing else. Used by
actors/kv/tenancy.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import final

import trio

from actors.kv.disk_desk import BlockFile, InThread, OpenFile, ReadDesk, in_thread
from actors.kv.disk_file import DirectoryTakenError, DiskFile
from actors.kv.disk_index import DiskIndex
from actors.kv.disk_reader import DiskReader
from actors.kv.disk_records import HASH_BYTES, RECORD_BYTES
from actors.kv.disk_writer import DiskWriter
from actors.kv.frames import Frames
from actors.kv.window import Window
from protocol.kv import BlockHash

NOTE_SECONDS = 5.0
"""How long it may take until it is written down that blocks were used."""
REST_SECONDS = 30.0
"""How long a disk that failed is let alone."""
TAKEN_SECONDS = 0.5
MOST_TIMES_TAKEN = 10
"""How often, and at what interval, a directory is tried that another connector is about to leave."""
FLUSH_SECONDS = 2.0
"""For what is still to be written when we leave."""

logger = logging.getLogger("trillm.kv")


@final
class Disk:
    """Of one window. `run` does the work; everything else returns at once."""

    def __init__(
        self,
        directory: Path,
        most_bytes: int,
        window: Window,
        frames: Frames,
        open_file: OpenFile = DiskFile,
        in_thread: InThread = in_thread,
    ) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._window = window
        self._open_file = open_file
        self._in_thread = in_thread
        self._num_slots = most_bytes // (window.frame_bytes + RECORD_BYTES)
        self._index = DiskIndex(self._num_slots)
        self._file: BlockFile | None = None
        self._opened: list[BlockFile] = []
        """By threads, some of which may have been abandoned."""
        self._is_over = False
        self._reader = DiskReader(directory, window, in_thread)
        self._news = trio.Event()
        self._resets: list[Callable[[], None]] = []
        """Whom to tell once everything is removed."""
        self._must_reset = False
        self._is_resting = False
        self._is_failing = False
        """Writing does."""
        self._write_limiter = trio.CapacityLimiter(1)
        self._writer = DiskWriter(window, frames, most_bytes, in_thread, self._write_limiter)
        self._num_failed_writes = 0

    @property
    def num_failures(self) -> int:
        return self._num_failed_writes + self._reader.num_failures

    @property
    def num_blocks(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        return self._index.end * self._window.frame_bytes

    # ------------------------------------------------------------------ what the connector asks

    @property
    def is_used(self) -> bool:
        return self._reader.is_used

    def has(self, block_hash: BlockHash) -> bool:
        return self._reader.has(block_hash)

    def want(self, block_hash: BlockHash) -> None:
        """Read it: the desk's `begin_read` and `end_read` are called then."""
        self._reader.want(block_hash)

    def offer(self, block_hash: BlockHash) -> None:
        """It is in memory, and should outlive that."""
        if len(block_hash) == HASH_BYTES and self._num_slots:
            self._writer.offer(block_hash)
            self._wake()

    def touch(self, block_hash: BlockHash) -> None:
        """It was of use, and is to be kept longer than others."""
        self._index.touch(block_hash)

    def reset(self, done: Callable[[], None]) -> None:
        """Nothing is found any more from now on, and nothing is there any more once `done` is called."""
        self._writer.forget()
        self._use(self._file, DiskIndex(self._num_slots))
        self._must_reset = True
        if self._is_resting:
            return done()  # before anything is found there again it is removed
        self._resets.append(done)
        self._wake()

    # ------------------------------------------------------------------ the work

    async def run(self, desk: ReadDesk) -> None:
        """Until cancelled; then it takes a moment for what was still to be written."""
        if not self._num_slots:
            logger.warning(
                "a block takes %d bytes and the disk may take %d: it is not used",
                self._window.frame_bytes,
                self._most_bytes,
            )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reader.run, desk)
                await self._keep_writing()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + FLUSH_SECONDS):
                await self._flush()
            self._is_over = True
            for file in self._opened:
                file.close()

    async def _keep_writing(self) -> None:
        while True:
            try:
                if self._file is None:
                    await self._open()
                elif self._must_reset:
                    await self._remove_all(self._file)
                else:
                    await self._writer.write_some(self._file, self._index)
                if self._is_failing:
                    self._is_failing = False
                    logger.info("%s can be used again", self._directory)
            except OSError as error:
                self._reader.opened()
                self._write_failed(error)
                await self._rest(error)
                continue
            if not (self._writer.is_due or self._must_reset):
                with trio.move_on_after(NOTE_SECONDS):
                    await self._wait_for_news()

    async def _open(self) -> None:
        """Raises OSError."""
        times = 0
        while (file := await self._in_thread(self._try_to_open, self._write_limiter)) is None:
            times += 1
            if times >= MOST_TIMES_TAKEN:
                raise DirectoryTakenError(f"{self._directory} is in use by another connector")
            await trio.sleep(TAKEN_SECONDS)
        records = await self._in_thread(file.read_records, self._write_limiter)
        index = DiskIndex(self._num_slots, [] if self._must_reset else records)
        room = functools.partial(file.make_room, index.end, self._most_bytes)
        await self._in_thread(room, self._write_limiter)
        self._use(file, DiskIndex(self._num_slots) if self._must_reset else index)
        self._reader.opened()
        of_them = (len(self._index), self.num_bytes / 2**30, self._most_bytes / 2**30)
        logger.info("%s has %d KV blocks in %.2f GiB, and may have %.2f GiB", self._directory, *of_them)

    def _try_to_open(self) -> BlockFile | None:
        """None if another connector has it."""
        try:
            file = self._open_file(self._directory, self._window.layout)
        except DirectoryTakenError:
            return None
        self._opened.append(file)
        if self._is_over:
            file.close()
        return file

    async def _remove_all(self, file: BlockFile) -> None:
        await self._in_thread(file.reset, self._write_limiter)
        self._must_reset = False
        self._tell_of_reset()

    def _tell_of_reset(self) -> None:
        resets, self._resets = self._resets, []
        for done in resets:
            done()

    async def _flush(self) -> None:
        """Behind what a thread is still at that was abandoned."""
        try:
            await self._in_thread(lambda: None, self._write_limiter)
            if self._file is None and (self._writer.is_due or self._must_reset):
                self._close()
                await self._open()
            if self._file is not None and self._must_reset:
                await self._remove_all(self._file)
            while self._file is not None and (self._writer.is_due or self._index.has_changes):
                await self._writer.write_some(self._file, self._index)
        except OSError as error:
            self._write_failed(error)

    # ------------------------------------------------------------------ failing

    def _write_failed(self, error: OSError) -> None:
        self._num_failed_writes += 1
        if not self._is_failing:
            self._is_failing = True
            logger.warning("KV blocks are not kept on the disk as long as it is so: %s", error)

    async def _rest(self, error: OSError) -> None:
        """What is there can still be read, but for files that were taken from under us, which are opened anew."""
        self._tell_of_reset()  # as in `reset`
        if self._file is None or isinstance(error, FileNotFoundError):
            self._close()
        self._is_resting = True
        await trio.sleep(REST_SECONDS)
        self._is_resting = False

    def _close(self) -> None:
        self._use(None, DiskIndex(self._num_slots))
        while self._opened:
            self._opened.pop().close()

    # ------------------------------------------------------------------ how

    def _use(self, file: BlockFile | None, index: DiskIndex) -> None:
        self._file, self._index = file, index
        self._reader.read_from(file, index)

    def _wake(self) -> None:
        self._news.set()

    async def _wait_for_news(self) -> None:
        await self._news.wait()
        self._news = trio.Event()
