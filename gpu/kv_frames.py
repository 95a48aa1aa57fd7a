"""A connector's window as a runner maps it: frames of one KV block each, and in each frame a piece for each rank.

Used by the runners and by ranks. Imports neither torch nor numpy, as the dummy runner does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from typing import final

from protocol.host_memory import MADV_POPULATE_WRITE
from protocol.kv import KvWindow

SLICE_BYTES = 1 << 20
"""Mapped at once, while no other thread runs Python."""


@final
class KvFrames:
    """The window, mapped. It stays when the connector is gone, until it is let go here. A context."""

    def __init__(self, window: KvWindow, rank: int = 0) -> None:
        """Raises OSError where it cannot be mapped: the connector is gone, say, and what has its number now is another
        process."""
        self.num_frames = window.num_frames
        self.frame_bytes = window.layout.frame_bytes
        self.piece_offset = window.layout.piece_offsets[rank]
        self.piece_bytes = window.layout.piece_bytes[rank]
        self._mapped = _map(window.path, self.num_frames * self.frame_bytes)
        self.memory = memoryview(self._mapped)
        """Of all frames, [num_frames * frame_bytes]. Let go of what is made of it before `close`."""
        self._is_mapped = bytearray(self.num_frames)
        """Those whose pages this process has, as far as it asked for them."""

    def piece(self, frame: int) -> memoryview:
        """This rank's part of a frame, [piece_bytes], to be read and written."""
        assert 0 <= frame < self.num_frames, f"frame {frame} is none of {self.num_frames}"
        start = frame * self.frame_bytes + self.piece_offset
        return self.memory[start : start + self.piece_bytes]

    def map_pages(self, frame: int) -> None:
        """For who is about to write to this rank's piece: all its pages at once, the first time. One by one, as they
        are written, takes two to three times as long, also where they have memory already."""
        if not self._is_mapped[frame]:
            self._is_mapped[frame] = True
            start = frame * self.frame_bytes + self.piece_offset
            end = start + self.piece_bytes
            with contextlib.suppress(OSError):  # of an old system, or without memory: then as they are written
                for page in range(start - start % mmap.PAGESIZE, end, SLICE_BYTES):
                    self._mapped.madvise(MADV_POPULATE_WRITE, page, min(SLICE_BYTES, end - page))

    def close(self) -> None:
        """Idempotent. Raises BufferError while a piece is in use."""
        self.memory.release()
        self._mapped.close()

    def __enter__(self) -> KvFrames:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KvFrames {self.num_frames} of {self.frame_bytes} bytes>"


def _map(path: str, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        # A file that is too short would end this process when it is read; one with a name is nobody's window.
        if status.st_size != size or status.st_nlink != 0:
            raise OSError(f"{path} is no window of {size} bytes, but a file of {status.st_size}")
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError(f"{path} is no window: it may become shorter")
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
