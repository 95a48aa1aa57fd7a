"""The events of a response to a client, as server-sent events. A response's last event is the last word: no [DONE]."""

from __future__ import annotations

import trio
from quart import Response

from app import sse
from app.responses.feed import Feed


class ResponseStream:
    """A body: what is new since the last piece goes out as one."""

    def __init__(
        self, feed: Feed, keep_alive_seconds: float, *, starting_after: int = -1, is_only_reader: bool
    ) -> None:
        """An only reader's events are forgotten once they are sent."""
        self._feed = feed
        self._keep_alive_seconds = keep_alive_seconds
        self._told = starting_after
        self._is_only_reader = is_only_reader

    def __aiter__(self) -> ResponseStream:
        return self

    async def __anext__(self) -> bytes:
        with trio.move_on_after(self._keep_alive_seconds):
            events = await self._feed.after(self._told)
            if not events:
                raise StopAsyncIteration
            self._told = events[-1].number
            if self._is_only_reader:
                self._feed.log.forget(self._told)
            return b"".join(event.frame for event in events)
        return sse.KEEP_ALIVE


def stream_events(feed: Feed, keep_alive_seconds: float, *, is_only_reader: bool) -> Response:
    stream = ResponseStream(feed, keep_alive_seconds, is_only_reader=is_only_reader)
    return Response(stream, headers=dict(sse.HEADERS))
