"""The memory that the ranks of a group on one host have in common. Used by shared_group.

It is a memfd, which is gone with the last process that holds it, however that one ends. The first rank makes it; others
open it by a path under /proc, which only the same user can.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import final

from torch.distributed import Store

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Memory that a peer cuts off would end the process that reads it."""


@final
class SharedMemory:
    """Mapped memory that begins as zeros. Close it when nothing uses its address any more."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED)
        self._first = ctypes.c_char.from_buffer(self._mapped)
        self.address = ctypes.addressof(self._first)

    def close(self) -> None:
        del self._first
        self._mapped.close()


def share_memory(store: Store, index: int, members: int, size: int) -> SharedMemory:
    """The same memory of `size` bytes in each of the group's members, which find it through a store of their own.

    Returns when all have it. Raises OSError where there is no memory or no way to another's, and torch's
    DistStoreError when one does not come within the store's time.
    """
    if index == 0:
        descriptor = os.memfd_create("trillm-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            store.set("memory", f"/proc/{os.getpid()}/fd/{descriptor}")
            memory = SharedMemory(descriptor, size)
            store.wait([f"mapped {other}" for other in range(1, members)])
            return memory
        finally:
            os.close(descriptor)
    descriptor = os.open(store.get("memory").decode(), os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = SharedMemory(descriptor, size)
    finally:
        os.close(descriptor)
    store.set(f"mapped {index}", "")
    return memory
