"""How much memory there is, of this machine or of its control group where that has a limit: for what is sized by it
(gpu/kv_pool) and for what an operator asks for (app/kv_start); and how it is asked for early."""

from __future__ import annotations

import os
from pathlib import Path

MADV_POPULATE_WRITE = 23
"""Linux's advice to give pages memory, and map them, now. Python 3.11 has no name for it."""
MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


def total_memory() -> int:
    """Bytes in all."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _limit()
    return total if limit is None else min(total, limit)


def available_memory() -> int:
    """Bytes that may still be taken."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    limit = _limit()
    if limit is not None:
        available = min(available, max(0, limit - int((GROUP / "memory.current").read_text())))
    return available


def _limit() -> int | None:
    """None: there is none."""
    file = GROUP / "memory.max"
    if not file.exists() or (limit := file.read_text().strip()) == "max":
        return None
    return int(limit)
