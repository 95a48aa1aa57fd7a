"""Tokens per second out of readings of counters, and their course. Pure; used by `trillm status --watch`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import final

from app.commands.status_proxy import ProxyServer
from app.commands.status_reading import Reading
from app.house import House

MOST_READINGS = 40
BARS = "▁▂▃▄▅▆▇█"


def counters_of(reading: Reading) -> dict[int, int]:
    """Tokens that were generated, by engine."""
    if isinstance(reading, House):
        return {engine.index: engine.generation_tokens for engine in reading.engines}
    if isinstance(reading, ProxyServer) or reading.generation_tokens is None:
        return {}
    return {0: reading.generation_tokens}


@final
class Rates:
    def __init__(self) -> None:
        self.by_engine: dict[int, float] = {}
        """Tokens per second between the last two readings; empty after the first, and after a restart."""
        self.course: deque[float] = deque(maxlen=MOST_READINGS)
        """Of all engines together, the oldest first."""
        self.earlier: House | None = None
        """The oldest of the last readings of this server: what was measured since is recent."""
        self._houses: deque[House] = deque(maxlen=MOST_READINGS)
        self._last: tuple[float, dict[int, int]] | None = None

    @property
    def total(self) -> float | None:
        return sum(self.by_engine.values()) if self.by_engine else None

    def take(self, reading: Reading, now: float) -> None:
        """`now` in seconds of a clock that nobody sets."""
        self._remember(reading)
        counters = counters_of(reading)
        before, self._last = self._last, (now, counters)
        self.by_engine = {}
        if before is None or now <= before[0]:
            return
        then, old = before
        if any(count < old.get(index, 0) for index, count in counters.items()):
            return  # the server has begun anew
        self.by_engine = {
            index: (count - old[index]) / (now - then) for index, count in counters.items() if index in old
        }
        if (total := self.total) is not None:
            self.course.append(total)

    def miss(self) -> None:
        """There was no answer."""
        self.by_engine, self._last = {}, None

    def _remember(self, reading: Reading) -> None:
        if not isinstance(reading, House):
            return
        if self._houses and self._houses[-1].started_at != reading.started_at:
            self._houses.clear()
        self.earlier = self._houses[0] if self._houses else None
        self._houses.append(reading)


def sparkline(values: Sequence[float]) -> str:
    """One character for each value, from nothing to the highest."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(int(value / highest * (len(BARS) - 1) + 0.5), len(BARS) - 1)] for value in values)
