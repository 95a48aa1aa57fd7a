"""How many of something a peer may do: so many at once, and so many a second for as long as it goes on.

Used by app/http2_connection.py for frames that cost their sender nothing.
"""

from __future__ import annotations

from typing import final


@final
class Allowance:
    """Pure: the caller says what time it is, in seconds by any clock that does not go back."""

    def __init__(self, burst: int, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._as_of = now

    def spend(self, count: int, now: float) -> bool:
        """Whether there were so many left. What is spent beyond has to be earned again, too."""
        self._left = min(self._burst, self._left + (now - self._as_of) * self._per_second) - count
        self._as_of = now
        return self._left >= 0

    def give(self, count: int) -> None:
        """So many more, for what makes some of it necessary."""
        self._left = min(self._burst, self._left + count)
