"""Blocks on a disk, over restarts: for each layout a directory with a file of slots and a file that says what is in
them. Everything here blocks, and is called in worker threads. Used by actors/kv/disk.

Bytes go to a slot before its record does, and the record has a checksum of them and of itself: whatever was torn, cut
off or written by somebody else is as if it were not there. Nothing is forced to the disk: after a power failure some of
it is lost.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, final

from actors.kv.disk_index import SlotRecord
from actors.kv.disk_records import ERASED, RECORD_BYTES, checksum, packed, sound_records
from protocol.kv import KV_VERSION, BlockHash, KvLayout
from protocol.kv_directory import LOCK, is_layout_name

BLOCKS, INDEX = "blocks", "index"
HEADER = struct.Struct("<8sIQ32s")
"""Magic, version, bytes of a block, the layout's digest."""
MAGIC = b"trillmKV"


class DirectoryTakenError(OSError):
    """Another connector has it."""


class Writing(NamedTuple):
    """One block that is to be written."""

    slot: int
    block_hash: BlockHash
    block: memoryview
    stamp: int


class Written(NamedTuple):
    """How far it came: the checksums of those that are written, and what stopped the others."""

    checksums: list[int]
    error: OSError | None


@final
class DiskFile:
    """The blocks of one layout in a directory that is this process's alone while this is open.

    Several threads may be in it. `close` returns at once; the last one to leave closes the files, so that nobody's
    descriptor is given to another file while a hung disk has it."""

    def __init__(self, directory: Path, layout: KvLayout) -> None:
        """Makes what is missing. Raises DirectoryTakenError, and OSError."""
        self.directory = directory
        self.block_bytes = layout.frame_bytes
        self.path = directory / layout.digest.hex()
        self._header = HEADER.pack(MAGIC, KV_VERSION, self.block_bytes, layout.digest.ljust(32, b"\0"))
        self._inside = threading.Lock()
        self._num_inside = 0
        self._is_closed = False
        self._descriptors: list[int] = []
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._open(directory / LOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DirectoryTakenError(error.errno, f"{directory} is in use by another connector") from None
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._index = self._open(self.path / INDEX)
            self._blocks = self._open(self.path / BLOCKS)
        except OSError:
            self._close_all()
            raise

    # ------------------------------------------------------------------ in threads

    def read_records(self) -> list[SlotRecord]:
        """What is there. A foreign or broken index counts as an empty one, and is replaced."""
        with self._entered():
            data = read_all(self._index)
            if data[: HEADER.size] != self._header:
                self._begin_anew()
                return []
            num_slots = os.fstat(self._blocks).st_size // self.block_bytes
            return list(sound_records(memoryview(data)[RECORD_BYTES:], num_slots))

    def make_room(self, num_slots: int, most_bytes: int) -> None:
        """For a file of so many slots: what is behind them is cut off, and other layouts go, the longest unused first,
        until all is at most so much."""
        with self._entered():
            ours = num_slots * self.block_bytes
            if os.fstat(self._blocks).st_size > ours:
                os.ftruncate(self._blocks, ours)
            others = sorted((modified, size, path) for path, size, modified in self._others())
            total = ours + sum(size for _, size, _ in others)
            for _, size, path in others:
                if total <= most_bytes:
                    return
                remove_layout(path)
                total -= size

    def read(self, record: SlotRecord, into: memoryview) -> bool:
        """Whether the block is there as it was written. Raises OSError."""
        with self._entered():
            start, done = record.slot * self.block_bytes, 0
            while done < self.block_bytes:
                count = os.preadv(self._blocks, [into[done:]], start + done)
                if not count:
                    return False
                done += count
        return checksum(record.block_hash, into) == record.checksum

    def write(self, blocks: Sequence[Writing]) -> Written:
        """These blocks, each over what its slot had before."""
        checksums: list[int] = []
        with self._entered():
            try:
                self._check_place()
                for one in blocks:
                    self._write_record(one.slot, ERASED)
                    write_all(self._blocks, one.block, one.slot * self.block_bytes)
                    crc = checksum(one.block_hash, one.block)
                    self._write_record(one.slot, packed(SlotRecord(one.slot, one.block_hash, crc, one.stamp)))
                    checksums.append(crc)
            except OSError as error:
                return Written(checksums, error)
        return Written(checksums, None)

    def note(self, changed: Iterable[SlotRecord], lost: Iterable[int]) -> None:
        """Records that have changed, and slots that have nothing any more. Raises OSError."""
        with self._entered():
            for record in changed:
                self._write_record(record.slot, packed(record))
            for slot in lost:
                self._write_record(slot, ERASED)

    def reset(self) -> None:
        """Remove all blocks, those of other layouts too. Raises OSError."""
        with self._entered():
            self._begin_anew()
            for path, _, _ in self._others():
                remove_layout(path)

    # ------------------------------------------------------------------ how

    def close(self) -> None:
        with self._inside:
            self._is_closed = True
            if not self._num_inside:
                self._close_all()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Raises OSError once it is closed."""
        with self._inside:
            if self._is_closed:
                raise OSError(f"{self.path} is closed")
            self._num_inside += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._inside:
            self._num_inside -= 1
            if self._is_closed and not self._num_inside:
                self._close_all()

    def _begin_anew(self) -> None:
        os.ftruncate(self._index, 0)
        os.ftruncate(self._blocks, 0)
        write_all(self._index, memoryview(self._header.ljust(RECORD_BYTES, b"\0")), 0)

    def _check_place(self) -> None:
        """Raises OSError if somebody has taken the file away from under us: what is written to it would be lost."""
        for name, descriptor in ((BLOCKS, self._blocks), (INDEX, self._index)):
            if not os.path.samestat(os.stat(self.path / name), os.fstat(descriptor)):
                raise FileNotFoundError(f"{self.path / name} is not the file any more that was opened")

    def _write_record(self, slot: int, record: bytes) -> None:
        write_all(self._index, memoryview(record), RECORD_BYTES * (1 + slot))

    def _others(self) -> Iterator[tuple[Path, int, float]]:
        """Directories of other layouts, with their bytes and when something changed there."""
        for path in self.directory.iterdir():
            index = path / INDEX
            if path != self.path and is_layout_name(path.name) and index.is_file():
                blocks = path / BLOCKS
                yield path, blocks.stat().st_size if blocks.exists() else 0, index.stat().st_mtime

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._descriptors.append(descriptor)
        return descriptor

    def _close_all(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def remove_layout(path: Path) -> None:
    for name in (INDEX, BLOCKS):
        (path / name).unlink(missing_ok=True)
    try:
        path.rmdir()
    except OSError:
        pass  # somebody else's file is in there


def read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    pieces = []
    offset = 0
    while offset < size and (piece := os.pread(descriptor, size - offset, offset)):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwritev(descriptor, [data[done:]], offset + done)
