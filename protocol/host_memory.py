"""How much memory there is, of this machine or of what we may have of it (control groups, `ulimit -v`): for what is
sized by it (gpu/kv_pool) and for what an operator asks for (app/kv_start); and how it is asked for early."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

MADV_POPULATE_WRITE = 23
"""Linux's advice to give pages memory, and map them, now. Python 3.11 has no name for it."""
MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
"""Tells which one is ours, below GROUP: a service's, as systemd's MemoryMax= limits it."""


def total_memory() -> int:
    """Bytes in all."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *(limit for limit, _ in _limits())])


def available_memory() -> int:
    """Bytes that may still be taken."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    return min([available, *(left for _, left in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """Each, and what is left of it, in bytes."""
    for group in _groups():
        with suppress(OSError, ValueError):  # there is none: the root has no such files, and "max" is no number
            limit = int((group / "memory.max").read_text())
            yield limit, max(0, limit - int((group / "memory.current").read_text()))
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        yield space, space


def _groups() -> Iterator[Path]:
    """Ours and those around it. Within a container they are the root, whatever they are called outside."""
    yield GROUP
    with suppress(OSError):
        for line in OWN_GROUP.read_text().splitlines():
            if line.startswith("0::/") and ".." not in line:
                own = PurePosixPath(line.removeprefix("0::/"))
                yield from (GROUP / group for group in (own, *own.parents) if group.name)
