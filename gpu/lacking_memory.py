"""Doing what there may be no room for, on the device or in the host's memory. Used by gpu/torch_runner, which then goes
on sleeping: whoever has the memory may give it back."""

from __future__ import annotations

from collections.abc import Callable

import torch

TOLD = ("DefaultCPUAllocator", "out of memory")
"""How torch says it in a plain RuntimeError."""


def lacking(action: Callable[[], None]) -> str | None:
    """Do it. Returns what was said if there was no memory for it: the error itself would keep what the action had made
    so far. Raises what else goes wrong."""
    try:
        action()
    except (MemoryError, RuntimeError) as error:
        is_plain = not isinstance(error, MemoryError | torch.OutOfMemoryError)
        if is_plain and not any(told in str(error) for told in TOLD):
            raise
        return str(error).partition("\n")[0] or type(error).__name__
    return None
