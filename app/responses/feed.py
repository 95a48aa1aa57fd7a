"""Readers of an event log who wait for what comes next. Any number of them; each remembers where it is."""

from __future__ import annotations

from typing import final

import trio

from app.responses.event_log import EventLog, LoggedEvent
from app.schemas.responses import Response


class Feed:
    """An event log that can be waited for."""

    def __init__(self, response: Response, *, keeps_events: bool = True) -> None:
        self._news = trio.Event()
        self.log = EventLog(response, keeps_events=keeps_events, on_event=self._tell)

    async def after(self, number: int) -> list[LoggedEvent]:
        """Events with a higher number, at least one; none if the log has ended and there are none. May be cancelled:
        nothing is taken out."""
        if self.log.num_events > number + 1 or self.log.ended:
            await trio.lowlevel.checkpoint()
        while True:
            events = self.log.since(number)
            if events or self.log.ended:
                return events
            await self._news.wait()

    async def wait_ended(self) -> None:
        while not self.log.ended:
            await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()


@final
class FeedReader:
    """One of a feed, from its beginning."""

    def __init__(self, feed: Feed, *, is_only: bool = False) -> None:
        """`is_only`: what it has read is forgotten."""
        self._feed = feed
        self._is_only = is_only
        self._told = -1

    async def next(self) -> list[LoggedEvent]:
        """The next events, at least one; none when there will be no more. May be cancelled: nothing is lost."""
        events = await self._feed.after(self._told)
        if events:
            self._told = events[-1].number
            if self._is_only:
                self._feed.log.forget(self._told)
        return events
