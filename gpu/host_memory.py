"""Giving freed memory back to the system. Used by gpu/torch_runner when an engine goes to sleep."""

from __future__ import annotations

import ctypes
import gc


def give_back_freed_memory() -> None:
    """What was freed and is kept for the next allocation, by Python's collector or by glibc; other C libraries have
    their own ways."""
    gc.unfreeze()  # what was there at the start may be what was dropped now
    gc.collect()
    gc.freeze()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return
    trim(0)
