"""HTTP/1.1 to the servers behind the proxy: a request to one of them, and its answer as it comes.

An answer that is left before its end has its connection closed, by which the server knows that nobody waits for it.
httpcore2 is used without httpx2 around it: that one would follow redirects, keep cookies, and leave generators behind.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, final

import httpcore2
import trio
from attrs import frozen

from app.drain import Drain
from app.proxy.counts import ProxyCounts
from app.proxy.left_connections import close_if_nobody_waits
from app.proxy.passed_headers import Headers
from app.proxy.surplus import give_up_if_more_came
from app.proxy.upstream import Upstream
from app.proxy.upstream_error import Kind, UpstreamError
from protocol.errors import BadRequestError

logger = logging.getLogger("trillm.proxy")

CONNECT_SECONDS = 3.0
KEEP_ALIVE_SECONDS = 3.0
"""Of idle connections: less than any server keeps them, so that none is closed while a request is sent on it."""
MAX_IDLE = 64
"""Connections to each server."""
DEAD_PEER = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A host that is gone without a word is noticed within half a minute, though a server may be silent for an hour."""


@frozen
class Outgoing:
    """A request as servers are to have it."""

    method: str
    target: str
    """Path and query, without a server's prefix."""
    headers: Headers
    body: bytes = b""


@final
class Answer:
    """Its head is here. The rest comes as it is asked for."""

    def __init__(self, response: httpcore2.Response, client: UpstreamClient, upstream: Upstream) -> None:
        self.status = response.status
        self.headers: Headers = response.headers
        self.end = "left"
        """How it ended, so far."""
        self._client = client
        self._upstream = upstream
        self._response = response
        self._body: AsyncGenerator[bytes] = response.stream.__aiter__()  # type: ignore[union-attr, assignment]

    async def receive(self) -> bytes:
        """The next bytes; none at the end. Raises UpstreamError, and UnavailableError when all is to end."""
        try:
            data: bytes = await self._client.ending.unless_begun(partial(anext, self._body, b""))
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise self._failed("broken", error) from error
        except httpcore2.TimeoutException as error:
            raise self._failed("late", error) from error
        if not data:
            self.end = "answered" if self.status < 400 else "refused"
        return data

    async def read(self, most: int) -> bytes:
        """All of it, if it has at most so many bytes. Raises as `receive`."""
        data = bytearray()
        while part := await self.receive():
            data += part
            if len(data) > most:
                raise self._failed("broken", ValueError(f"its answer has more than {most} bytes"))
        return bytes(data)

    async def aclose(self) -> None:
        await self._body.aclose()
        if self.end in ("answered", "refused"):
            give_up_if_more_came(self._response)
        await self._response.aclose()

    def _failed(self, kind: Kind, error: Exception) -> UpstreamError:
        self.end = kind
        return self._client.failed(self._upstream, kind, error)


@final
class UpstreamClient:
    """To all servers of one proxy."""

    def __init__(
        self,
        counts: ProxyCounts,
        ending: Drain,
        certificates: ssl.SSLContext | None = None,
        silent_seconds: float = 3600.0,
        backend: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        """`ending`: once it is begun, whatever is waited for ends. `certificates`: whom https is believed. Tests bring
        their own `backend`."""
        self.ending = ending
        self._counts = counts
        self._timeouts = {"connect": CONNECT_SECONDS, "read": silent_seconds, "write": silent_seconds}
        self._options: dict[str, Any] = {
            "ssl_context": certificates,
            "max_connections": None,
            "max_keepalive_connections": MAX_IDLE,
            "keepalive_expiry": KEEP_ALIVE_SECONDS,
            "network_backend": backend,
            "socket_options": DEAD_PEER,
        }
        self._pools: dict[str, httpcore2.AsyncConnectionPool] = {}
        """By authority: one pool of all would look through the connections of all with each request."""

    async def __aenter__(self) -> UpstreamClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    @asynccontextmanager
    async def open_answer(
        self, upstream: Upstream, outgoing: Outgoing, counted_as: str | None = None
    ) -> AsyncIterator[Answer]:
        """Entered when the head of the answer is here. `counted_as`: instead of the server's role. Raises
        UpstreamError, and UnavailableError when all is to end."""
        turn = upstream.begin()
        answer: Answer | None = None
        end = "left"
        try:
            response = await self._send(upstream, outgoing)
            answer = Answer(response, self, upstream)
            try:
                yield answer
            finally:
                await answer.aclose()
        except UpstreamError as error:
            end = error.kind
            raise
        finally:
            turn.end()
            self._counts.ended(counted_as or upstream.role, upstream.address, end if answer is None else answer.end)

    async def _send(self, upstream: Upstream, outgoing: Outgoing) -> httpcore2.Response:
        address = upstream.address
        length = [(b"content-length", str(len(outgoing.body)).encode())]
        request = httpcore2.Request(
            outgoing.method,
            httpcore2.URL(
                scheme=address.scheme.encode(),
                host=address.host.encode(),
                port=address.port,
                target=(address.prefix + outgoing.target).encode(),
            ),
            headers=[
                (b"host", address.authority.encode()),
                *outgoing.headers,
                *(length if outgoing.body or outgoing.method == "POST" else ()),
            ],
            content=outgoing.body,
            extensions={"timeout": self._timeouts, "trace": close_if_nobody_waits},
        )
        pool = self._pool(f"{address.scheme}://{address.authority}")
        try:
            return await self.ending.unless_begun(partial(pool.handle_async_request, request))
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            raise self.failed(upstream, "unreachable", error) from error
        except httpcore2.LocalProtocolError as error:
            raise BadRequestError(f"The request's head cannot be passed on: {error}") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise self.failed(upstream, "broken", error) from error
        except httpcore2.TimeoutException as error:
            raise self.failed(upstream, "late", error) from error

    def _pool(self, place: str) -> httpcore2.AsyncConnectionPool:
        if place not in self._pools:
            self._pools[place] = httpcore2.AsyncConnectionPool(**self._options)
        return self._pools[place]

    def failed(self, upstream: Upstream, kind: Kind, error: Exception) -> UpstreamError:
        """It rests now, and the log has it, once for requests that fail together."""
        detail = said_by(error)
        was_resting = trio.current_time() < upstream.rests_until
        seconds = upstream.has_failed(trio.current_time())
        level = logging.DEBUG if was_resting else logging.WARNING
        told = "%s server %s is %s: %s; it rests for %.0f s"
        logger.log(level, told, upstream.role, upstream.address, kind, detail, seconds)
        return UpstreamError(kind, upstream.role, detail)

    def is_well(self, upstream: Upstream) -> None:
        """It has answered."""
        if upstream.is_well():
            self._is_back(upstream)

    def is_busy(self, upstream: Upstream) -> None:
        """It has turned a request away, which another server may take."""
        if upstream.is_busy(trio.current_time()):
            self._is_back(upstream)

    def _is_back(self, upstream: Upstream) -> None:
        logger.info("%s server %s is back", upstream.role, upstream.address)


def said_by(error: BaseException) -> str:
    """In words. Where TLS fails, only what was behind it all has some; httpcore2 has taken the causes away by then, but
    not the contexts."""
    words, before = str(error), error.__context__
    while not words and before is not None:
        words, before = str(before), before.__context__
    return words or type(error).__name__
