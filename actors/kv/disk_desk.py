"""What actors/kv/disk, disk_reader and disk_writer need: a file, frames, and threads for what blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from actors.kv.disk_file import Writing, Written
from actors.kv.disk_index import SlotRecord
from protocol.kv import BlockHash, KvLayout

T = TypeVar("T")


class BlockFile(Protocol):
    """Where blocks lie: actors.kv.disk_file.DiskFile. All but `close` blocks, and may raise OSError."""

    def read_records(self) -> list[SlotRecord]: ...
    def make_room(self, num_slots: int, most_bytes: int) -> None: ...
    def read(self, record: SlotRecord, into: memoryview) -> bool: ...
    def write(self, blocks: Sequence[Writing]) -> Written: ...
    def note(self, changed: Iterable[SlotRecord], lost: Iterable[int]) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


class ReadDesk(Protocol):
    """Who gives frames to be read into: actors.kv.finds."""

    def begin_read(self, block_hash: BlockHash) -> int | None:
        """A frame to read it into. None: it is not wanted any more, or there is no room."""

    def end_read(self, block_hash: BlockHash, frame: int | None, *, is_there: bool) -> None:
        """For each `begin_read` that gave a frame, and without one for what the disk does not have."""


OpenFile = Callable[[Path, KvLayout], BlockFile]


class InThread(Protocol):
    """Has something done that blocks, by one of `limiter`'s threads. Cancelled, it leaves it to itself."""

    async def __call__(self, act: Callable[[], T], limiter: trio.CapacityLimiter) -> T: ...


async def in_thread(act: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
    return await trio.to_thread.run_sync(act, abandon_on_cancel=True, limiter=limiter)
