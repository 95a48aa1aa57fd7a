"""The connector's memory: frames of one block each, which the engine and other connectors of this host map.

In a file without a name, so that it is gone with the last process that has it, however that one ends.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import final

from protocol.host_memory import MADV_POPULATE_WRITE
from protocol.kv import KvLayout, KvWindow

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Its size is what it is: with a file that gets shorter, whoever has it mapped ends by a signal."""


@final
class Window:
    """`num_frames` frames of `layout`. Raises OSError where there is no memory for it, which is taken page by page
    when frames are first written. A context: leaving it lets go of it, and who has it mapped keeps it."""

    def __init__(self, layout: KvLayout, num_frames: int, engine_index: int = 0) -> None:
        """Raises ValueError for a window without frames."""
        if num_frames < 1:
            raise ValueError(f"a window needs frames, not {num_frames}")
        self.layout = layout
        self.num_frames = num_frames
        self.frame_bytes = layout.frame_bytes
        self.num_bytes = num_frames * self.frame_bytes
        self.descriptor = os.memfd_create(f"trillm-kv-{engine_index}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, self.num_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
            self._mapped = mmap.mmap(self.descriptor, self.num_bytes)
        except (OSError, ValueError):
            os.close(self.descriptor)
            raise
        self._memory = memoryview(self._mapped)

    def frame(self, index: int) -> memoryview:
        """Its bytes, to be read and written. Release it, or drop it, before the window is closed."""
        assert 0 <= index < self.num_frames, f"frame {index} is none of {self.num_frames}"
        return self._memory[index * self.frame_bytes : (index + 1) * self.frame_bytes]

    def populate(self, start: int, size: int) -> None:
        """Take memory for these bytes now, if they have none yet; what is in them stays. `start` is a multiple of the
        page's size. Raises OSError where there is none, or the system is too old."""
        self._mapped.madvise(MADV_POPULATE_WRITE, start, size)

    def described(self) -> KvWindow:
        """For those who are to map it while we live."""
        return KvWindow(f"/proc/{os.getpid()}/fd/{self.descriptor}", self.num_frames, self.layout)

    def close(self) -> None:
        """Idempotent. Raises BufferError if a frame is still in use here."""
        if self.descriptor >= 0:
            self._memory.release()
            self._mapped.close()
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Window {self.num_frames} frames of {self.frame_bytes} bytes>"
