"""HTTP/1.1 to one server: answers that are wanted whole, and streams of events. Used by the commands.

Leaving a stream before its end closes its connection, by which the server knows that nobody waits for the answer.
httpcore2 alone, for the reasons in app/proxy/upstream_client.py.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar, final

import httpcore2
import msgspec
import trio

from app.api_client.call_error import (
    NoAnswerError,
    RefusedError,
    broken_off,
    message_of,
    not_connected,
    not_in_time,
    not_whole_in_time,
)
from app.api_client.call_error import refused as refused_by
from app.api_client.event_reader import EventReader, EventTooLongError
from app.api_client.place import Place
from app.proxy.left_connections import close_if_nobody_waits
from protocol.errors import BadRequestError

T = TypeVar("T")
Body = Mapping[str, object]
"""Of JSON."""

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""For all of an answer that is no generation."""
STREAM_SECONDS = 600.0
"""Of silence within a stream, and before its first byte: a prompt may wait long for its turn."""
KEEP_ALIVE_SECONDS = 3.0
"""Of idle connections: less than any server keeps them."""
FAILURES = (b'{"error"', b'{"object":"error"')
"""How events begin that are no chunks."""
END_SECONDS = 1.0
"""For a server to end what it has said all of."""
MOST_BYTES = 32 << 20
"""Of an answer that is read whole."""
MOST_ERROR_BYTES = 1 << 20


@final
class Stream:
    """Events of one answer that has begun."""

    def __init__(self, place: Place, body: AsyncGenerator[bytes], silent_seconds: float) -> None:
        self._place = place
        self._body = body
        self._silent_seconds = silent_seconds
        self._events = EventReader()
        self._failure: RefusedError | None = None
        """Comes after what came before it."""

    @property
    def is_done(self) -> bool:
        """It has said that this was all."""
        return self._events.is_done

    async def receive(self) -> list[bytes]:
        """The next events' data; none at the end. Raises NoAnswerError if the server breaks off, and RefusedError for
        what it tells in an event of its own."""
        if self._failure is not None:
            raise self._failure
        while not self.is_done:
            try:
                data = await anext(self._body, b"")
                events = self._events.take(data)
            except httpcore2.TimeoutException as error:
                raise not_in_time(self._place, self._silent_seconds) from error
            except (httpcore2.NetworkError, httpcore2.ProtocolError, EventTooLongError) as error:
                raise broken_off(self._place, error) from error
            for number, event in enumerate(events):
                if event.startswith(FAILURES):
                    self._failure = RefusedError(f"{self._place} ended the answer: {message_of(event)}")
                    del events[number:]
                    break
            if events or not data:
                return events
            if self._failure is not None:
                raise self._failure
        with trio.move_on_after(END_SECONDS):
            await self._rest()
        return []

    async def _rest(self) -> None:
        """What is left once all is said, which is the end: read, it lets the connection be used again."""
        try:
            while await anext(self._body, b""):
                pass
        except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError):
            pass  # nothing of the answer is missing


@final
class ApiClient:
    def __init__(
        self,
        place: Place,
        *,
        stream_seconds: float = STREAM_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        backend: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        """Seconds after which an answer is given up: of silence in a stream, and for all of any other. Tests bring
        their own `backend`. Raises BadRequestError for certificates that cannot be read."""
        self.place = place
        self._stream_seconds = stream_seconds
        self._answer_seconds = answer_seconds
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=_certificates(place),
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            uds=None if place.uds is None else str(place.uds),
            network_backend=backend,
        )

    async def __aenter__(self) -> ApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def get(self, path: str, kind: type[T]) -> T:
        """Its JSON. Raises NoAnswerError and RefusedError."""
        return self._read(path, await self.ask("GET", path), kind)

    async def post(self, path: str, body: Body | None, kind: type[T]) -> T:
        """As `get`."""
        return self._read(path, await self.ask("POST", path, body), kind)

    async def ask(self, method: str, path: str, body: Body | None = None) -> bytes:
        """The whole answer's body, if its status is a good one. Raises NoAnswerError and RefusedError."""
        with trio.move_on_after(self._answer_seconds):
            async with self._open(method, path, body, self._answer_seconds) as data:
                return await self._whole(data, MOST_BYTES, self._answer_seconds)
        raise not_whole_in_time(self.place, self._answer_seconds)

    @asynccontextmanager
    async def open_stream(self, path: str, body: Body) -> AsyncIterator[Stream]:
        """POST; entered when the head of the answer is here. Raises NoAnswerError and RefusedError."""
        async with self._open("POST", path, body, self._stream_seconds) as data:
            yield Stream(self.place, data, self._stream_seconds)

    def _read(self, path: str, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoAnswerError(f"{self.place}{path} answered what is not expected there: {error}") from error

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Body | None, seconds: float
    ) -> AsyncIterator[AsyncGenerator[bytes]]:
        response = await self._send(method, path, body, seconds)
        data: AsyncGenerator[bytes] = response.stream.__aiter__()  # type: ignore[union-attr, assignment]
        try:
            if response.status >= 300:
                said = await self._whole(data, MOST_ERROR_BYTES, seconds)
                raise refused_by(self.place, response.status, said)
            yield data
        finally:
            await data.aclose()
            await response.aclose()

    async def _send(self, method: str, path: str, body: Body | None, seconds: float) -> httpcore2.Response:
        place = self.place
        try:
            content = b"" if body is None else msgspec.json.encode(body)
        except UnicodeEncodeError as error:  # bytes that a command line or a terminal gave, and that are no characters
            raise BadRequestError(f"only text in UTF-8 can be sent: {error.reason} in {error.object[:40]!r}") from error
        headers = [(b"host", place.authority.encode()), (b"accept", b"application/json, text/event-stream")]
        if place.key is not None:
            headers.append((b"authorization", f"Bearer {place.key}".encode()))
        if body is not None:
            headers += [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        target = (place.prefix + path).encode()
        request = httpcore2.Request(
            method,
            httpcore2.URL(scheme=place.scheme.encode(), host=place.host.encode(), port=place.port, target=target),
            headers=headers,
            content=content,
            extensions={
                "timeout": {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds},
                "trace": close_if_nobody_waits,
            },
        )
        try:
            return await self._pool.handle_async_request(request)
        except httpcore2.ConnectTimeout as error:
            raise not_in_time(place, CONNECT_SECONDS) from error
        except (httpcore2.ConnectError, OSError) as error:
            raise not_connected(place, error) from error
        except httpcore2.TimeoutException as error:
            raise not_in_time(place, seconds) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise broken_off(place, error) from error

    async def _whole(self, body: AsyncGenerator[bytes], most: int, seconds: float) -> bytes:
        data = bytearray()
        try:
            async for part in body:
                data += part
                if len(data) > most:
                    raise NoAnswerError(f"the answer of {self.place} has more than {most} bytes")
        except httpcore2.TimeoutException as error:
            raise not_in_time(self.place, seconds) from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise broken_off(self.place, error) from error
        return bytes(data)


def _certificates(place: Place) -> ssl.SSLContext | None:
    if place.scheme == "http":
        return None
    try:
        context = ssl.create_default_context(cafile=place.ca_certs)
    except OSError as error:  # an SSLError is one
        raise BadRequestError(f"--ca-certs {place.ca_certs} cannot be used: {error}") from error
    if place.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
