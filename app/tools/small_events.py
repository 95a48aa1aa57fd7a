"""The stream of events that all calls on a session of the older transport share, without events that would break it.

Its reader in the MCP package ends with the first event of more than a mebibyte, and with it every call on the session.
Such an event becomes an error of the call that it answers. Used by app/tools/bounded_http.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import final

import httpx2
import trio

from app.tools.bounded_body import BodyLimits
from app.tools.incoming_message import IncomingMessage
from app.tools.pace import Pace

OF_SHARED_EVENTS = BodyLimits(2**20, 2**18)
"""The first is the package's."""
SKIPPED_AT_ONCE, SKIPPED_PER_SECOND = 64 * 2**20, 4 * 2**20
"""Bytes of events that are too large."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_DATA = re.compile(rb"^data:", re.MULTILINE)


@final
class SmallEvents(httpx2.AsyncByteStream):
    """Each event when it has ended. Raises ToolError for one that is too large and answers no call."""

    def __init__(self, body: httpx2.AsyncByteStream, limits: BodyLimits = OF_SHARED_EVENTS) -> None:
        self._body = body
        self._reader = EventReader(limits)
        self._pace = Pace(SKIPPED_AT_ONCE, SKIPPED_PER_SECOND)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            if self._reader.skips:
                await trio.sleep(self._pace.wait_for(len(part), trio.current_time()))
            if events := self._reader.feed(part):
                yield events

    async def aclose(self) -> None:
        await self._body.aclose()


@final
class EventReader:
    """Pure. Keeps what there is of one event."""

    def __init__(self, limits: BodyLimits) -> None:
        self._event = IncomingMessage(limits, _DATA)
        self._line_has_begun = False
        self._is_after_return = False

    @property
    def skips(self) -> bool:
        """Whether it is in an event that is too large."""
        return self._event.is_too_large

    def feed(self, part: bytes) -> bytes:
        """The events that end in it. Raises ToolError."""
        events: list[bytes] = []
        begin = 0
        for end in self._event_ends(part):
            self._event.take(part[begin:end])
            is_replaced = self._event.is_too_large
            event = self._event.end()
            events.append(b"data: %b\n\n" % event if is_replaced else event)
            begin = end
        self._event.take(part[begin:])
        return b"".join(events)

    def _event_ends(self, part: bytes) -> Iterator[int]:
        """Where the next event begins: after each blank line."""
        at = 1 if self._is_after_return and part.startswith(b"\n") else 0
        self._is_after_return = part.endswith(b"\r")
        for end in _LINE_END.finditer(part, at):
            is_blank = end.start() == at and not self._line_has_begun
            self._line_has_begun = False
            at = end.end()
            if is_blank:
                yield at
        self._line_has_begun = self._line_has_begun or at < len(part)
