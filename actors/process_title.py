"""What lists of processes show of us: a standby that becomes an engine is to be found, and killed, under that name."""

from __future__ import annotations

import ctypes
from pathlib import Path

ARG_START, ARG_END = 45, 46
"""In /proc/self/stat, counted from the state on."""


def rename_argument(old: str, new: str) -> bool:
    """Put `new` in the place of our command line's argument `old`, where the kernel reads it. What Python made of the
    arguments stays. False, and nothing is done, if there is no such argument or no room for the new one."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    line = Path("/proc/self/cmdline").read_bytes()
    before, after = old.encode(), new.encode()
    at = line.find(b"\0" + before + b"\0") + 1
    if at == 0 or len(after) > len(before) or end - start != len(line):
        return False
    ctypes.memmove(start + at, after.ljust(len(before), b"\0"), len(before))
    return True
