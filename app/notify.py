"""Tells a service manager (systemd, over sd_notify's protocol) how the server is: ready, what it does, that it lives.

Used by app/serving.py. Without NOTIFY_SOCKET in the environment nothing is sent. A manager that does not listen costs
one line in the log: serving goes on.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Protocol, final

import trio

from app import activation
from app.engine import Readiness
from protocol.engine_stats import EngineStats

logger = logging.getLogger("trillm.notify")

STATUS_SECONDS = 1.0
"""The status line is told at most that often, and only when it has changed."""
STOP_SECONDS = 15.0
"""After the drain: terminal frames, and the ladder on which the actors are stopped."""


@final
class Notifier:
    """One way to the manager. Sending never blocks and never raises."""

    def __init__(self, address: str, watchdog_seconds: float | None) -> None:
        """`address`: a path, or with a leading @ a name in the abstract namespace. `watchdog_seconds`: within these the
        manager wants to hear that we live; None if it does not."""
        self.watchdog_seconds = watchdog_seconds
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._complained = False

    def send(self, **variables: str | int) -> None:
        """One datagram. A line break in a value would begin another variable, so there is none."""
        lines = (f"{name}={' '.join(str(value).split())}" for name, value in variables.items())
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                logger.warning("the service manager cannot be told anything (NOTIFY_SOCKET): %s", error)

    def close(self) -> None:
        self._socket.close()


class Reported(Protocol):
    """What is told of: app.engine.EngineClient fulfils it."""

    @property
    def alive(self) -> bool: ...

    @property
    def readiness(self) -> Readiness: ...

    @property
    def stats(self) -> EngineStats: ...


@final
class ServiceReport:
    """What the manager is told of one server."""

    def __init__(self, engine: Reported, notifier: Notifier | None) -> None:
        self._engine = engine
        self._notifier = notifier
        self._told: str | None = None
        self._is_stopping = False

    async def run(self, admitted: trio.Event) -> None:
        """Until cancelled. `admitted`: set once requests are taken."""
        if self._notifier is None:
            return
        async with trio.open_nursery() as nursery:
            if self._notifier.watchdog_seconds is not None:
                nursery.start_soon(self._live, self._notifier, self._notifier.watchdog_seconds / 2)
            nursery.start_soon(self._tell_when_ready, self._notifier, admitted)
            while True:
                self._tell(self._notifier)
                await trio.sleep(STATUS_SECONDS)

    def stopping(self, seconds: float) -> None:
        """From now on it drains, for that long at most."""
        self._is_stopping = True
        if self._notifier is not None:
            self._told = status_line(self._engine)
            extra = round((seconds + STOP_SECONDS) * 1e6)
            self._notifier.send(STOPPING=1, STATUS=self._told, EXTEND_TIMEOUT_USEC=extra)

    async def _tell_when_ready(self, notifier: Notifier, admitted: trio.Event) -> None:
        await admitted.wait()
        if self._is_stopping:
            return
        self._told = status_line(self._engine)
        notifier.send(READY=1, STATUS=self._told)

    def _tell(self, notifier: Notifier) -> None:
        line = status_line(self._engine)
        if line != self._told:
            self._told = line
            notifier.send(STATUS=line)

    async def _live(self, notifier: Notifier, period: float) -> None:
        """A task like any other: its turns prove that the loop gives turns. A service that cannot go on is silent."""
        while self._engine.alive:
            notifier.send(WATCHDOG=1)
            await trio.sleep(period)


def status_line(engine: Reported) -> str:
    """In one line, for `systemctl status`."""
    stats, readiness = engine.stats, engine.readiness
    state = readiness.reason if not readiness.ready else f"ready, but {late}" if (late := readiness.late) else "ready"
    return f"{state}; {stats.num_requests_running} running, {stats.num_requests_waiting} waiting"


VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", *activation.VARIABLES)


def take_variables(environment: MutableMapping[str, str]) -> dict[str, str]:
    """What the manager said, out of the environment, so that no child speaks in our name or takes our sockets for its
    own: to be called before there is one."""
    return {name: value for name in VARIABLES if (value := environment.pop(name, None)) is not None}


@contextmanager
def open_notifier(variables: Mapping[str, str]) -> Iterator[Notifier | None]:
    """Of what `take_variables` took. None if no manager listens."""
    address = variables.get("NOTIFY_SOCKET")
    microseconds, pid = variables.get("WATCHDOG_USEC", ""), variables.get("WATCHDOG_PID", "")
    if not address:
        yield None
        return
    is_ours = microseconds.isdecimal() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
    notifier = Notifier(address, int(microseconds) / 1e6 if is_ours else None)
    try:
        yield notifier
    finally:
        notifier.close()
