"""Ctrl-C while a command waits for a server: what is under way is cancelled, and the command goes on. Used by chat,
bench, status and check."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from protocol.errors import TrillmError

STATUS = 130
"""Of a command that was interrupted, as shells have it."""


async def unless_interrupted(work: Callable[[], Awaitable[object]]) -> bool:
    """Whether it came to its end: false once SIGINT or SIGTERM has cancelled it. What it raises of TrillmError and
    OSError comes out as it is, in no group."""
    failure: TrillmError | OSError | None = None
    is_over = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on, signals, nursery.cancel_scope)
            try:
                await work()
                is_over = True
            except (TrillmError, OSError) as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return is_over


async def _cancel_on(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
