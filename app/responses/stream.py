"""The events of a response to a client, as server-sent events. A response's last event is the last word: no [DONE].

Used by app/routes/responses.py and app/routes/stored_responses.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import final

import trio
from quart import Response
from quart.wrappers.response import ResponseBody

from app import sse
from app.responses.event_log import LoggedEvent
from protocol.errors import UnavailableError

Read = Callable[[], Awaitable[Sequence[LoggedEvent]]]
"""The next events, at least one; none when there will be no more. May be cancelled: nothing is lost. May raise
UnavailableError."""


@final
class EventBody(ResponseBody):
    """The body that Quart iterates."""

    def __init__(self, read: Read, keep_alive_seconds: float) -> None:
        self._read = read
        self._keep_alive_seconds = keep_alive_seconds

    async def __aenter__(self) -> EventBody:
        return self

    async def __aexit__(self, exc_type: type, exc_value: BaseException, tb: TracebackType) -> None:
        return None

    def __aiter__(self) -> EventBody:
        return self

    async def __anext__(self) -> bytes:
        """What is new since the last piece, as one block of bytes. A store that fails ends the stream without the event
        that ends the response, so that the client takes it up again."""
        with trio.move_on_after(self._keep_alive_seconds):
            try:
                events = await self._read()
            except UnavailableError as error:  # it has been logged
                raise StopAsyncIteration from error
            if not events:
                raise StopAsyncIteration
            return b"".join(event.frame for event in events)
        return sse.KEEP_ALIVE


def stream_events(read: Read, keep_alive_seconds: float) -> Response:
    return Response(EventBody(read, keep_alive_seconds), headers=dict(sse.HEADERS))
