"""How fast something from outside is taken: so much at once, and so much a second for as long as it goes on.

app/allowance.py says when a peer has gone too far; this says how long to wait, so that it cannot. Used for what servers
of tools send of their own accord.
"""

from __future__ import annotations

import math
from typing import final


@final
class Pace:
    """Pure: the caller says what time it is, in seconds by any clock that does not go back."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst_seconds = burst / per_second
        self._per_second = per_second
        self._due = -math.inf

    def wait_for(self, count: float, now: float) -> float:
        """Takes so much more. Returns the seconds to wait before going on."""
        self._due = max(self._due, now - self._burst_seconds) + count / self._per_second
        return max(0.0, self._due - now)
