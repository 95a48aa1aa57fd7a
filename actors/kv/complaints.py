"""What the operator of a server hears of tickets that brought nothing to it: now and then, why. All of them are counted
besides. Pure but for the clock, which is given; used by actors/kv/finds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import final

COMPLAINT_SECONDS = 60.0
"""Between two lines in the log about failures of one kind."""

logger = logging.getLogger("trillm.kv")


@final
class Complaints:
    """Of one window."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}
        self._untold: Counter[str] = Counter()

    def failed(self, kind: str, sentence: str) -> None:
        """`kind` is one of protocol.kv.KV_FAILURES, of which there are few."""
        now, last = self._clock(), self._last.get(kind)
        if last is not None and now - last < COMPLAINT_SECONDS:
            self._untold[kind] += 1
            return
        self._last[kind] = now
        more = self._untold.pop(kind, 0)
        before = f" (and {more} more of this kind since that was said last)" if more else ""
        logger.warning("the blocks of a ticket could not be had: %s%s", sentence, before)
