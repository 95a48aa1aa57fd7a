"""A file that exists only in memory (memfd): what one process writes there, others map as /proc/PID/fd/N.

It is gone with the last process that holds or maps it, however that one ends. Used by gpu/tensor_ipc and
gpu/weights_sharing. Imports no torch.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import final

ALIGNMENT = mmap.PAGESIZE
MAX_WRITE = 2**30
"""Linux writes no more than 2 GiB at once."""


@final
class MemoryFile:
    """Written by its maker alone, until it is sealed. Raises OSError where the system has no memory for it."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        """Under which processes of the same user open it, while we live."""
        self.size = 0

    def append(self, data: memoryview) -> int:
        """Write these bytes at the next page; the offset of their first one."""
        offset, done = self.size, 0
        while done < len(data):
            done += os.pwrite(self.descriptor, data[done : done + MAX_WRITE], offset + done)
        self.size = -(-(offset + len(data)) // ALIGNMENT) * ALIGNMENT
        os.ftruncate(self.descriptor, self.size)
        return offset

    def seal(self) -> None:
        """From now on nobody can change it."""
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        """Let go of it; who has it mapped keeps it. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
