"""The events of a background response for whoever comes later, from any of them on and to its end.

Read from the feed while it is under way here; from the archive when it has ended, and while another server that shares
the archive has it. Made by app/routes/stored_responses.py.
"""

from __future__ import annotations

from typing import final

import msgspec
import trio

from app.responses.event_log import LoggedEvent
from app.responses.feed import Feed
from app.responses.store import ResponseStore
from app.schemas.response_events import ErrorEvent
from protocol.errors import NotFoundError

LOOK_SECONDS = 0.25
"""How often the archive is looked into for what another server tells."""

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
"""Types of events that are the last."""


class _Numbered(msgspec.Struct):
    type: str
    sequence_number: int


_NUMBERED = msgspec.json.Decoder(_Numbered)


@final
class Replay:
    """One reader of one response."""

    def __init__(self, store: ResponseStore, response_id: str, starting_after: int, feed: Feed | None) -> None:
        """`feed`: if it is under way here."""
        self._store = store
        self._id = response_id
        self._feed = feed
        self._after = starting_after
        self._has_ended = False

    async def next(self) -> list[LoggedEvent]:
        """The next events, at least one; none when there will be no more. May be cancelled: nothing is lost. Raises
        UnavailableError."""
        events = await (self._archived() if self._feed is None else self._feed.after(self._after))
        if events:
            self._after = events[-1].number
            self._has_ended = events[-1].type in ENDS
        return events

    async def _archived(self) -> list[LoggedEvent]:
        while not self._has_ended:
            try:
                row = await self._store.get(self._id)
            except NotFoundError as error:  # a client has deleted it meanwhile
                gone = ErrorEvent(sequence_number=self._after + 1, code="not_found", message=error.message)
                return [_logged(msgspec.json.encode(gone))]
            found = await self._store.events(self._id, self._after)
            if found or not row.is_under_way:
                return [_logged(event) for event in found]
            await trio.sleep(LOOK_SECONDS)
        return []


def _logged(data: bytes) -> LoggedEvent:
    told = _NUMBERED.decode(data)
    return LoggedEvent(told.sequence_number, told.type, data)
