"""`trillm serve` on a host that only keeps ranks for another one: no HTTP, no engine. Used by app/launch.py."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Mapping

import trio

from actors.handles import follow_host
from app.checkpoints.resolve import Checkpoint
from app.hosts import following_host
from app.notify import Notifier, open_notifier
from app.settings import Settings

logger = logging.getLogger("trillm")


async def serve_headless(settings: Settings, checkpoint: Checkpoint, manager: Mapping[str, str]) -> int:
    """Until a signal. Raises StartError when the leading host refuses this one, and as app.hosts.following_host."""
    spec = following_host(settings, checkpoint.directory)
    with (
        open_notifier(manager) as notifier,
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_leave_on_signal, signals, nursery.cancel_scope)
            if notifier is not None:
                notifier.send(READY=1, STATUS=f"keeps ranks for {spec.endpoint}")
                nursery.start_soon(_live, notifier)
            await follow_host(spec)
    logger.info("stopped")
    return 0


async def _leave_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


async def _live(notifier: Notifier) -> None:
    """As app.notify.ServiceReport: a task's turns prove that the loop gives turns."""
    while notifier.watchdog_seconds is not None:
        notifier.send(WATCHDOG=1)
        await trio.sleep(notifier.watchdog_seconds / 2)
