"""Cancels what a task does at each of its checkpoints, one after the other, to see what it leaves behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio


class _CancelAt(trio.abc.Instrument):
    """At the task's so many-th checkpoint."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._task = trio.lowlevel.current_task()
        self._left = step
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def at_each_checkpoint(most: int) -> AsyncIterator[trio.CancelScope]:
    """Scopes to be entered, each of which is cancelled one checkpoint later than the one before, until one is left
    without; there may be at most so many."""
    for step in range(1, most + 1):
        scope = trio.CancelScope()
        instrument = _CancelAt(step, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield scope
        finally:
            trio.lowlevel.remove_instrument(instrument)
        if not scope.cancelled_caught:
            return
    raise AssertionError(f"it has more than {most} checkpoints")
