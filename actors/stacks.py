"""A signal on which every child writes down what it is doing, for the log of its parent: of one that hangs there is no
other way to know."""

from __future__ import annotations

import faulthandler
import signal

STACK_SIGNAL = signal.SIGUSR2


def write_stacks_when_asked() -> None:
    """The Python stacks of all threads go to stderr, whatever these are stuck in."""
    faulthandler.register(STACK_SIGNAL, all_threads=True)
