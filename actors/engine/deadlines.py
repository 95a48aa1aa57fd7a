"""Which of the engine's requests nobody waits for any longer. Pure: the scheduler keeps it, the main hands in the time.

The app ends its requests itself, a moment earlier. This is for when it cannot: a request that ran on would take the
place of one that somebody waits for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import final

from actors.engine.sequence import Sequence


@final
class Deadlines:
    """Knows no deadline earlier than the earliest, so that a step with nothing due costs one comparison."""

    def __init__(self) -> None:
        self._earliest = math.inf
        """Of all that were noted since the last look; the sequence may have ended."""

    def note(self, sequence: Sequence) -> None:
        """This sequence is live from now on."""
        if sequence.request.deadline is not None:
            self._earliest = min(self._earliest, sequence.request.deadline)

    def passed(self, live: Iterable[Sequence], now: float) -> list[Sequence]:
        """Those of all live sequences whose deadline is over. `now` is in seconds of CLOCK_MONOTONIC."""
        if now < self._earliest:
            return []
        due = [(sequence, sequence.request.deadline) for sequence in live if sequence.request.deadline is not None]
        self._earliest = min((deadline for _, deadline in due if deadline > now), default=math.inf)
        return [sequence for sequence, deadline in due if deadline <= now]
