"""A streamed answer: deltas to server-sent events, whatever the engine does in the meantime.

The route has opened the answer before the headers go out, so that a refusal still is a proper status. From then on
every end is told in the stream: usage, an error frame, and always [DONE] last. Everything that piled up while the
client was slow goes out as one write.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from quart import Response
from quart.wrappers.response import ResponseBody

from app import sse
from app.answer import Answer
from app.failures import error_body, failure_of
from protocol.messages import RequestOutput


class Chunks(Protocol):
    """How one kind of answer is told in chunks. Pure; remembers what it has told."""

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        """The events for new deltas."""
        ...

    def closing(self) -> list[bytes]:
        """The events after every choice has ended, without [DONE]."""
        ...


class EventStream(ResponseBody):
    """The body that Quart iterates. It owns nothing: the connection closes the answer (see app/connection.py)."""

    def __init__(self, answer: Answer, chunks: Chunks, request_id: str) -> None:
        self._answer = answer
        self._chunks = chunks
        self._request_id = request_id
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
        try:
            frames = self._chunks.frames(await self._answer.receive())
            if self._answer.finished:
                self._ended = True
                frames += [*self._chunks.closing(), sse.DONE]
        except Exception as error:  # the headers are out: the stream itself has to tell it
            self._ended = True
            frames = [sse.raw_event(error_body(failure_of(error, self._request_id))), sse.DONE]
        return b"".join(frames)


def stream_response(answer: Answer, chunks: Chunks, request_id: str) -> Response:
    return Response(EventStream(answer, chunks, request_id), headers=dict(sse.HEADERS))
