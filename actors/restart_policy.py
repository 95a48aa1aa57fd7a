"""When a dead actor is started again, and when its deaths are too many. Pure: the caller says what time it is."""

from __future__ import annotations

from typing import final

FIRST_DELAY = 0.05
"""Seconds before the first restart; doubled with each further death inside the window."""
MAX_DELAY = 5.0


@final
class RestartPolicy:
    """Gives up at the `max_deaths`-th death within `window` seconds."""

    def __init__(self, max_deaths: int = 4, window: float = 60.0) -> None:
        self.max_deaths = max_deaths
        self.window = window
        self._deaths: list[float] = []

    def died(self, now: float) -> float | None:
        """Seconds to wait before the restart, or None: do not restart."""
        self._deaths = [at for at in self._deaths if now - at < self.window]
        self._deaths.append(now)
        if len(self._deaths) >= self.max_deaths:
            return None
        return min(FIRST_DELAY * float(2 ** (len(self._deaths) - 1)), MAX_DELAY)
