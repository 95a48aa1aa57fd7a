"""When whoever reads a command's output has closed it, as `head` does when it has enough. Used by chat and status, and
by app/commands/ending.py."""

from __future__ import annotations

import os
import sys

STATUS = 1


def nobody_reads() -> int:
    """The exit status. What Python still flushes in the end goes nowhere, without a complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return STATUS
