"""A streamed answer: deltas to server-sent events, whatever the engine does in the meantime.

The route has opened the answer before the headers go out, so that a refusal still is a proper status. From then on
every end is told in the stream: usage, an error frame, and what an API has last in any case. Everything that piled up
while the client was slow goes out as one write.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import Protocol

import trio
from quart import Response
from quart.wrappers.response import ResponseBody

from app import sse
from app.access_log import Access
from app.answer import Answer
from app.ending import OPENAI, Ending
from app.failures import failure_of
from protocol.errors import TrillmError
from protocol.messages import RequestOutput


class Chunks(Protocol):
    """How one kind of answer is told in chunks. Pure; remembers what it has told."""

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        """The events for new deltas."""
        ...

    def held_back(self) -> list[bytes]:
        """The events for deltas that were taken and not told yet: no more will come, because of an error."""
        ...

    def closing(self) -> list[bytes]:
        """The events after every choice has ended, without what is always last."""
        ...


class EventStream(ResponseBody):
    """The body that Quart iterates. It owns nothing: the connection closes the answer (see app/connection.py)."""

    def __init__(
        self, answer: Answer, chunks: Chunks, access: Access, ending: Ending, keep_alive_seconds: float
    ) -> None:
        """`keep_alive_seconds`: a client that hears nothing for so long hears a comment; infinity is never."""
        self._answer = answer
        self._chunks = chunks
        self._access = access
        self._ending = ending
        self._keep_alive_seconds = keep_alive_seconds
        self._told_at = trio.current_time()
        self._ended = False

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, exc_type: type, exc_value: BaseException, tb: TracebackType) -> None:
        return None

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        """The events that are due, as one block of bytes. A block may be empty: not every token makes text."""
        if self._ended:
            raise StopAsyncIteration
        if self._keep_alive_seconds == math.inf:
            return await self._next()
        block = b""
        with trio.move_on_at(self._told_at + self._keep_alive_seconds):
            block = await self._next()
        now = trio.current_time()
        if not block and now >= self._told_at + self._keep_alive_seconds:
            block = sse.KEEP_ALIVE
        if block:
            self._told_at = now
        return block

    async def _next(self) -> bytes:
        """To be cancelled only while it waits: nothing is lost then."""
        try:
            frames = await self._frames()
        except Exception as error:  # the headers are out: the stream itself has to tell it
            frames = self._failed(error)
        return b"".join(frames)

    async def _frames(self) -> list[bytes]:
        try:
            outputs = await self._answer.receive()
        except TrillmError as error:
            return [*self._chunks.held_back(), *self._failed(error)]
        frames = self._chunks.frames(outputs)
        if self._answer.finished:
            self._ended = True
            frames += [*self._chunks.closing(), self._ending.last]
        return frames

    def _failed(self, error: Exception) -> list[bytes]:
        self._ended = True
        failure = failure_of(error, self._access.label)
        self._access.failure = failure.code or str(failure.status)
        return [self._ending.failure(failure, self._access.label), self._ending.last]


def stream_response(
    answer: Answer, chunks: Chunks, access: Access, ending: Ending = OPENAI, keep_alive_seconds: float = math.inf
) -> Response:
    stream = EventStream(answer, chunks, access, ending, keep_alive_seconds)
    return Response(stream, headers=dict(sse.HEADERS))
