"""Ends live requests that have waited too long: for their end (a deadline) or their beginning (the queue's limit).

One task for all requests of the engine client, which owns it: a cancel scope around each wait for a token would cost
more than the token does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import final

import trio

from app.deadline import Deadline
from app.incidents import Incidents
from app.journal import Entry
from protocol.errors import TrillmError, UnavailableError
from protocol.ids import RequestId

LOOK_SECONDS = 0.05
"""The journal is not searched more often."""


@final
class LateRequests:
    """Of one engine client. `live` is its journal, `end` ends a request with all choices of its call."""

    def __init__(
        self,
        live: Mapping[RequestId, Entry],
        end: Callable[[Entry, TrillmError], None],
        max_queue_seconds: float,
        incidents: Incidents,
        is_held: Callable[[], bool],
    ) -> None:
        """`is_held`: whether the engines are paused or asleep, so that nothing gets its first token."""
        self._live = live
        self._end = end
        self._max_queue_seconds = max_queue_seconds
        self._incidents = incidents
        self._is_held = is_held
        self._next_look = math.inf
        self._sooner = trio.Event()

    def note(self, entry: Entry) -> None:
        """This one is live from now on."""
        if entry.due < self._next_look:
            self._sooner.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._next_look = min((entry.due for entry in self._live.values()), default=math.inf)
            self._sooner = trio.Event()
            with trio.move_on_at(max(self._next_look, trio.current_time() + LOOK_SECONDS)):
                await self._sooner.wait()
            now = trio.current_time()
            for entry in list(self._live.values()):
                if entry.due <= now and entry.request_id in self._live:  # else it ended with another choice of its call
                    self._end(entry, self.lateness(entry.deadline))

    def lateness(self, deadline: Deadline | None) -> TrillmError:
        """What a request that is late by now fails with: it is counted."""
        if deadline is not None and deadline.at <= trio.current_time():
            self._incidents.deadlines += 1
            return deadline.error()
        self._incidents.queue_timeouts += 1
        reason = "the engine is paused or asleep" if self._is_held() else "it has too much to do"
        return UnavailableError(
            f"No token within {self._max_queue_seconds:g} s (the server's --max-queue-time): {reason}",
            code="queue_timeout",
        )
