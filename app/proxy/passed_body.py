"""A server's answer on its way to a client, and how a client is told that no more of it will come.

Quart asks for the next bytes when the last ones are with the client's connection, and only then is the server asked:
who reads slowly holds up the server's stream, and nothing piles up here.
"""

from __future__ import annotations

from types import TracebackType
from typing import final

from quart import Response
from quart.wrappers.response import ResponseBody

from app.access_log import Access
from app.ending import ending_at
from app.failures import failure_of
from app.proxy.cut_off import CutOffError
from app.proxy.forwarding import Refusal
from app.proxy.passage import Passage
from app.proxy.passed_headers import Headers, passed_down
from app.proxy.upstream_client import Answer
from app.proxy.upstream_error import UpstreamError
from app.proxy.usage_tail import UsageTail
from app.proxy.whole_events import WholeEvents
from protocol.errors import TrillmError, UnavailableError


@final
class PassedBody(ResponseBody):
    """What Quart iterates. It owns nothing: the connection closes the answer (see app/connection.py)."""

    def __init__(self, answer: Answer, access: Access, passage: Passage) -> None:
        self._answer = answer
        self._passage = passage
        self._usage = UsageTail() if passage.way == "handed_over" and answer.status == 200 else None
        self._access = access
        self._events = WholeEvents() if _is_event_stream(answer.headers) else None
        self._ended = False

    async def __aenter__(self) -> PassedBody:
        return self

    async def __aexit__(self, exc_type: type, exc_value: BaseException, tb: TracebackType) -> None:
        return None

    def __aiter__(self) -> PassedBody:
        return self

    async def __anext__(self) -> bytes:
        """Raises CutOffError for a broken answer that is no stream of events: its connection is to be closed."""
        if self._ended:
            raise StopAsyncIteration
        try:
            data = await self._answer.receive()
        except (UpstreamError, UnavailableError) as error:
            self._ended = True
            return self._broken(error)
        if not data:
            self._ended = True
            if self._usage is not None and self._usage.num_cached_tokens() == 0:
                self._passage.is_not_taken()
            return b"" if self._events is None else self._events.rest()
        if self._usage is not None:
            self._usage.take(data)
        return data if self._events is None else self._events.take(data)

    def _broken(self, error: TrillmError) -> bytes:
        self._access.failure = error.code or str(error.status)
        if self._events is None:
            raise CutOffError(error.message) from error
        ending, label = ending_at(self._access.path), self._access.label
        return self._events.broken() + ending.failure(failure_of(error, label), label) + ending.last


def passed_response(answer: Answer | Refusal, access: Access, passage: Passage) -> Response:
    body = answer.body if isinstance(answer, Refusal) else PassedBody(answer, access, passage)
    response = Response(body, status=answer.status)
    response.headers.clear()
    for name, value in passed_down(answer.headers):
        response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
    return response


def _is_event_stream(headers: Headers) -> bool:
    kinds = [value for name, value in headers if name.lower() == b"content-type"]
    packed = any(name.lower() == b"content-encoding" for name, _ in headers)
    return not packed and any(kind.lower().startswith(b"text/event-stream") for kind in kinds)
