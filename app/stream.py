"""A streamed answer: deltas to server-sent events, whatever the engine does in the meantime.

The route has opened the answer before the headers go out, so that a refusal still is a proper status. From then on
every end is told in the stream: usage, an error frame, and what an API has last in any case. Everything that piled up
while the client was slow goes out as one write.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from attrs import frozen
from quart import Response
from quart.wrappers.response import ResponseBody

from app import sse
from app.answer import Answer
from app.failures import error_body, failure_of
from protocol.errors import TrillmError
from protocol.messages import RequestOutput


@frozen
class Ending:
    """How an API's streams end."""

    failure: Callable[[TrillmError, str], bytes]
    """The event for an error, of the request with this label."""
    last: bytes
    """After everything else, whether it failed or not."""


OPENAI = Ending(lambda error, _: sse.raw_event(error_body(error)), sse.DONE)


class Chunks(Protocol):
    """How one kind of answer is told in chunks. Pure; remembers what it has told."""

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        """The events for new deltas."""
        ...

    def closing(self) -> list[bytes]:
        """The events after every choice has ended, without what is always last."""
        ...


class EventStream(ResponseBody):
    """The body that Quart iterates. It owns nothing: the connection closes the answer (see app/connection.py)."""

    def __init__(self, answer: Answer, chunks: Chunks, request_id: str, ending: Ending) -> None:
        self._answer = answer
        self._chunks = chunks
        self._request_id = request_id
        self._ending = ending
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
                frames += [*self._chunks.closing(), self._ending.last]
        except Exception as error:  # the headers are out: the stream itself has to tell it
            self._ended = True
            failure = failure_of(error, self._request_id)
            frames = [self._ending.failure(failure, self._request_id), self._ending.last]
        return b"".join(frames)


def stream_response(answer: Answer, chunks: Chunks, request_id: str, ending: Ending = OPENAI) -> Response:
    return Response(EventStream(answer, chunks, request_id, ending), headers=dict(sse.HEADERS))
