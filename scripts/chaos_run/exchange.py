"""One HTTP request and its response as the bytes come, over a plain socket: a client can be as slow or as rude as it
likes, which an HTTP library does not allow."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio

SMALL_BUFFER = 4096
"""Bytes that the system keeps for a client who reads slowly; else it takes in whole answers unread."""


class BrokenAnswerError(Exception):
    """The connection ended before the response did, or what came is no HTTP."""


class Exchange:
    """Made by `open_exchange`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._parser = h11.Connection(h11.CLIENT)
        self.status = 0
        self.retry_after: float | None = None
        self.ended = False

    async def send(self, method: str, path: str, body: object = None) -> None:
        """Raises BrokenAnswerError."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = [("Host", "localhost"), ("Connection", "close"), ("Content-Type", "application/json")]
        head = self._parser.send(
            h11.Request(method=method, target=path, headers=[*headers, ("Content-Length", str(len(data)))])
        )
        rest = (self._parser.send(h11.Data(data=data)) or b"") if data else b""
        self._parser.send(h11.EndOfMessage())
        try:
            await self._stream.send_all((head or b"") + rest)
        except trio.BrokenResourceError as error:
            raise BrokenAnswerError("the connection broke while the request was sent") from error

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Some more of the body, perhaps none yet. Sets `status` and, at the end, `ended`. Raises BrokenAnswerError."""
        try:
            self._parser.receive_data(await self._stream.receive_some(max_bytes))
            return self._take()
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            raise BrokenAnswerError(f"the answer broke off: {error!r}") from error

    def _take(self) -> bytes:
        parts = []
        while True:
            event = self._parser.next_event()
            if isinstance(event, h11.Response):
                self.status = event.status_code
                told = dict(event.headers).get(b"retry-after")
                self.retry_after = float(told) if told else None
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self.ended = True
                break
            else:
                break
        return b"".join(parts)

    async def receive_all(self) -> bytes:
        parts = []
        while not self.ended:
            parts.append(await self.receive())
        return b"".join(parts)

    def reset(self) -> None:
        """Closing will then be an RST, and no FIN."""
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@asynccontextmanager
async def open_exchange(port: int, *, slow: bool = False) -> AsyncIterator[Exchange]:
    """A connection of its own. Raises OSError if nobody listens."""
    raw = trio.socket.socket()
    if slow:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    try:
        await raw.connect(("127.0.0.1", port))
    except BaseException:
        raw.close()
        raise
    stream = trio.SocketStream(raw)
    try:
        yield Exchange(stream)
    finally:
        with trio.CancelScope(shield=True):
            await stream.aclose()  # never blocks: a socket is closed at once


async def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Status and body. Raises BrokenAnswerError or OSError."""
    async with open_exchange(port) as exchange:
        await exchange.send(method, path, body)
        body_told = await exchange.receive_all()
        return exchange.status, body_told


def as_json(data: bytes) -> dict[str, Any]:
    """Raises BrokenAnswerError for what is no JSON object."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise BrokenAnswerError(f"no JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise BrokenAnswerError(f"no JSON object: {data[:200]!r}")
    return value
