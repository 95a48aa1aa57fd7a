"""Standard input, output and error that whoever started us has closed. Used by app/cli.py, before anything else."""

from __future__ import annotations

import os
import sys


def open_what_is_closed() -> None:
    """/dev/null takes their place. Otherwise the next socket or file gets the number of one of them, and the log, or
    what a child says, goes into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  it stays open
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
