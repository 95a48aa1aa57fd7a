"""Memory for the frames of a window that are used next: the system finds it page by page when they are first written,
which takes many times as long as the writing. Used by actors/kv/tenancy, until all frames have been used once.

Not for the whole window at once: a server that keeps little takes little, and its memory grows as it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import final

import trio

from actors.kv.window import Window

AHEAD_BYTES = 64 << 20
"""Beyond the last frame that is used: a long prompt's blocks."""
SLICE_BYTES = 1 << 20
"""At once, in about a millisecond, in which nobody else here has a turn."""
PAUSE_SECONDS = 0.002

logger = logging.getLogger("trillm.kv")


@final
class MemoryAhead:
    """Of one window."""

    def __init__(self, window: Window, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._window = window
        self._ahead_bytes = ahead_bytes
        self._end = 0
        """So many bytes of it have memory."""

    async def keep(self, num_used: Callable[[], int], more_used: Callable[[], Awaitable[None]]) -> None:
        """Until there is no more to be had. `num_used` says how many of the first frames have been used, and after
        `more_used` it may be more."""
        while self._end < self._window.num_bytes:
            if self._end < num_used() * self._window.frame_bytes + self._ahead_bytes:
                self._make_some()
                await trio.sleep(PAUSE_SECONDS)
            else:
                await more_used()

    def _make_some(self) -> None:
        size = min(SLICE_BYTES, self._window.num_bytes - self._end)
        try:
            self._window.populate(self._end, size)
        except OSError as error:
            logger.debug("memory comes as frames are written: %s", error)
            self._end = self._window.num_bytes
        else:
            self._end += size
