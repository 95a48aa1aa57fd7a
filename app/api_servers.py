"""The main process where several API servers answer: it owns the listening sockets, the signals and the actors, among
them the API servers, and answers nothing itself. Used by app/launch.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from typing import final

import attrs
import msgspec
import trio
from hypercorn.config import Sockets

from actors.handles import ApiServersView, ApiTemplate, open_api_servers
from app.api_serving import ApiServing, written
from app.checkpoints.resolve import Checkpoint
from app.engine import Readiness
from app.follow_start import follow_start
from app.listening import AFTER_DRAIN_SECONDS, ListeningConfig, address
from app.notify import Notifier, ServiceReport
from app.settings import Settings
from app.start_screen import Served, Start, served
from app.startup import SHARED_AS
from protocol.engine_stats import EngineStats

LEAVE_SECONDS = 5.0
"""After the drain's own deadlines, how long API servers may take to end."""

logger = logging.getLogger("trillm")


async def oversee(
    settings: Settings,
    checkpoint: Checkpoint,
    config: ListeningConfig,
    sockets: Sockets,
    signals: AsyncIterator[int],
    notifier: Notifier | None,
    start: Start,
) -> int:
    """Until a signal or a failure; the exit status, as of app/launch.py."""
    listeners = [*sockets.secure_sockets, *sockets.insecure_sockets]
    template = ApiTemplate(
        num_servers=settings.api_server_count,
        listeners=tuple(listener.fileno() for listener in listeners),
        serving=written(ApiServing(settings, checkpoint, config.is_activated, time.time())),
    )
    spec = attrs.evolve(settings.house(checkpoint.directory, checkpoint.draft), api=template)
    name = (settings.served_model_name or (checkpoint.name,))[0]
    url = address(sockets)
    start.screen.starting(name, url)
    async with open_api_servers(spec) as servers:
        report = ServiceReport(Whole(servers), notifier)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(report.run, servers.admitted)
            nursery.start_soon(follow_start, start.startup, servers.actors, start.screen.logs)
            nursery.start_soon(announce, servers, start, served(settings, name, url))
            nursery.start_soon(leave_after_failure, servers, nursery.cancel_scope)
            first = await anext(signals)
            start.screen.stopping()
            seconds = 0.0 if servers.failure else settings.shutdown_timeout
            logger.info("draining: %s API servers, for %.0f s at most", settings.api_server_count, seconds)
            report.stopping(seconds)
            for listener in listeners:
                listener.close()  # ours: who comes now is refused, and not left waiting
            await stop(servers, first, signals, seconds)
            nursery.cancel_scope.cancel()
    if servers.failure is not None:
        return 1
    logger.info("stopped")
    return 0


async def stop(servers: ApiServersView, first: int, signals: AsyncIterator[int], seconds: float) -> None:
    """Told once, they drain, by their own deadlines; a second signal they are told, too."""
    servers.stop(first)
    async with trio.open_nursery() as nursery:

        async def pass_on() -> None:
            async for number in signals:
                servers.stop(number)

        nursery.start_soon(pass_on)
        with trio.move_on_after(seconds + AFTER_DRAIN_SECONDS + LEAVE_SECONDS) as scope:
            await servers.wait_gone()
        if scope.cancelled_caught:
            logger.error("an API server has not ended in time, and is killed")
        nursery.cancel_scope.cancel()


async def leave_after_failure(servers: ApiServersView, scope: trio.CancelScope) -> None:
    """Once those who were under way have been told."""
    await servers.failed.wait()
    with trio.move_on_after(AFTER_DRAIN_SECONDS + LEAVE_SECONDS):
        await servers.wait_gone()
    scope.cancel()


async def announce(servers: ApiServersView, start: Start, what: Served) -> None:
    """Once all of them take requests."""
    await servers.admitted.wait()
    start.startup.finish()
    servers.share(SHARED_AS, msgspec.msgpack.encode(start.startup.seconds))
    start.screen.ready(start.startup, what)


@final
class Whole:
    """All API servers as one, for the service manager. Fulfils app.notify.Reported."""

    def __init__(self, servers: ApiServersView) -> None:
        self._servers = servers

    @property
    def alive(self) -> bool:
        return self._servers.failure is None

    @property
    def readiness(self) -> Readiness:
        """One that takes requests is enough; those that do not are late."""
        standings = self._servers.standings()
        if self._servers.failure is not None:
            return Readiness(False, self._servers.failure)
        down = [f"api-{index}" for index, standing in enumerate(standings) if standing is None]
        told = [standing for standing in standings if standing is not None]
        ready = [standing for standing in told if standing.is_ready]
        if not ready:
            reasons = [standing.reason for standing in told]
            return Readiness(False, next(iter(reasons), "the API servers are starting"))
        late = [f"{', '.join(down)}: down"] * bool(down) + [ready[0].late] * bool(ready[0].late)
        return Readiness(True, "", "; ".join(late))

    @property
    def stats(self) -> EngineStats:
        """Running and waiting: as engines tell each API server, of all."""
        told = [standing for standing in self._servers.standings() if standing is not None]
        running = max((standing.num_running for standing in told), default=0)
        return EngineStats(running, max((standing.num_waiting for standing in told), default=0))
