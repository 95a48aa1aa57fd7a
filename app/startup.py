"""What a server's start does, and how long each part takes: from the first byte of a download to the first request.

One phase at a time, so that the seconds add up: what this process does, then what the engine does that is last to be
ready. app/commands/serve.py makes one, app/follow_start.py keeps it up to date, app/start_screen.py shows it to people,
and app/startup_metrics.py to Prometheus. Pure but for its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import final

from actors.handles import ActorState
from protocol.phases import START, WAIT

CONNECT = "connect"
"""The engines are ready: links are made, adapters checked, and the rest of this process loaded."""
FETCHING = {"fetching": "download", "unpacking": "unpack", "reading": "convert"}
"""By the first word of what app/checkpoints reports."""
TOLD_SECONDS = 1.0
"""What took less is only in the summary."""
UNTOLD = (START, CONNECT)
"""Nor these, which say nothing of themselves."""
LONG_SECONDS = 10.0
"""What goes on for longer is said to, once."""
SHOWN_SECONDS = 0.05
WEIGHTS = "weights-0"
SHARED_AS = "startup"
"""The key under which API servers hear from the main process how long the phases took."""


@final
class Startup:
    """Of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._since = clock()
        self._told_of_length = False
        self._news: list[str] = []
        self.phase = START
        self.detail = ""
        """Which file, or which actor."""
        self.progress = 0.0
        """Of the phase, 0 to 1; 0.0 also where that is not known."""
        self.seconds: dict[str, float] = {}
        """Of the phases that are over, in their order. A phase may come several times."""
        self.actors: Sequence[ActorState] = ()
        self.awaited = ""
        """What is waited for in CONNECT, where this process knows."""
        self.is_over = False

    @property
    def total(self) -> float:
        """Seconds so far, or that it took."""
        return sum(self.seconds.values()) if self.is_over else self._clock() - self._began

    @property
    def phase_seconds(self) -> float:
        return self._clock() - self._since

    def enter(self, phase: str, detail: str = "", seconds_ago: float = 0.0) -> None:
        """It began so many seconds ago."""
        self.detail = detail
        if phase == self.phase or self.is_over:
            return
        now = self._clock()
        at = min(now, max(self._since, now - seconds_ago))
        took = at - self._since
        self.seconds = self.seconds | {self.phase: self.seconds.get(self.phase, 0.0) + took}  # others read the old one
        if took >= TOLD_SECONDS and self.phase not in UNTOLD:
            self._news.append(f"{self.phase} took {took:.1f} s")
        self.phase, self._since, self.progress, self._told_of_length = phase, at, 0.0, False

    def report(self, what: str, done: int, total: int) -> None:
        """As app.checkpoints tells of what it fetches and converts: bytes."""
        first, _, rest = what.partition(" ")
        self.enter(FETCHING.get(first, first), rest)
        self.progress = done / total if total else 0.0

    def follow(self, actors: Sequence[ActorState]) -> None:
        """How the actors are now."""
        self.actors = actors
        if self.is_over:
            return
        engines = [state for state in actors if state.engine_index is not None]
        late = next((state for state in engines if not state.ready), None)
        if late is None:
            if engines:
                self.enter(CONNECT, self.awaited)
            return
        weights = next((state for state in actors if state.name == WEIGHTS), None)
        if late.phase == WAIT and weights is not None and not weights.ready:
            late = weights
        if late.pid is not None:
            self.enter(late.phase, late.name, late.phase_seconds + late.heartbeat_age)
            self.progress = late.progress

    def finish(self) -> None:
        """Requests are taken."""
        self.enter("ready")
        self.is_over = True

    def take(self, seconds: dict[str, float]) -> None:
        """How long another process, which knows better, says that the phases took."""
        self.seconds, self.is_over = seconds, True

    def news(self) -> list[str]:
        """What there is to log since this was asked last: at most two lines of each phase."""
        if not (self.is_over or self._told_of_length) and self.phase_seconds >= LONG_SECONDS:
            self._told_of_length = True
            part = f", {self.progress:.0%}" if self.progress else ""
            of = f" ({self.detail})" if self.detail else ""
            self._news.append(f"{self.phase}{of}: {self.phase_seconds:.0f} s so far{part}")
        news, self._news = self._news, []
        return news

    @property
    def told_seconds(self) -> dict[str, float]:
        """Of the phases that took any time to speak of."""
        return {phase: took for phase, took in self.seconds.items() if took >= SHOWN_SECONDS}

    def summary(self) -> str:
        """As "load 1.2, import 0.8"."""
        return ", ".join(f"{phase} {took:.1f}" for phase, took in self.told_seconds.items())
