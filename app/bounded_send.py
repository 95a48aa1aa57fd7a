"""hypercorn's trio worker sends inside a shield without a deadline: a client that stops reading would hold its handler,
and with it the shutdown, for ever. This replaces that one method by one that gives up on who takes nothing for a while,
and on everybody soon when the server is in a hurry. Used by app/serving.py.

It also tries to send at once before it takes the lock and the scheduler's round trip, which is what a streamed token's
few bytes nearly always can.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import final

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer

YIELD_EVERY = 8
"""Sends that may go straight through before other tasks get their turn."""
SLICE_BYTES = 64 * 2**10
"""Who has taken so much is reading, and gets the whole time again for the next slice."""
HURRY_SECONDS = 1.0

Send = Callable[[TCPServer, Event], Awaitable[None]]


@final
class BoundedSends:
    """All sends of one server."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long a client may take for one slice."""
        self._seconds = seconds
        self._num_sends = 0
        self._waiting: set[trio.CancelScope] = set()
        self._latest = math.inf
        """On trio's clock: when whatever is still being sent is given up."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In place of hypercorn's own method, for connections that are opened meanwhile."""
        original = TCPServer.protocol_send

        async def protocol_send(server: TCPServer, event: Event) -> None:
            await self._send(server, event, original)

        TCPServer.protocol_send = protocol_send
        try:
            yield
        finally:
            TCPServer.protocol_send = original

    def hurry(self) -> None:
        """From now on who reads gets what is sent within a second, and nobody is waited for longer."""
        self._latest = trio.current_time() + HURRY_SECONDS
        for scope in self._waiting:
            scope.deadline = min(scope.deadline, self._latest)

    async def _send(self, server: TCPServer, event: Event, original: Send) -> None:
        if not isinstance(event, RawData):
            return await original(server, event)
        sent = 0
        if isinstance(server.stream, trio.SocketStream) and not server.send_lock.locked():
            sent = send_now(server.stream.socket, event.data)
        if sent < len(event.data):
            return await self._send_rest(server, memoryview(event.data)[sent:])
        self._num_sends += 1
        if self._num_sends % YIELD_EVERY == 0:
            await trio.lowlevel.checkpoint()
        return None

    async def _send_rest(self, server: TCPServer, data: memoryview) -> None:
        async with server.send_lock:
            try:
                for start in range(0, len(data), SLICE_BYTES):
                    if not await self._is_taken(server, data[start : start + SLICE_BYTES]):
                        await trio.aclose_forcefully(server.stream)
                        await server.protocol.handle(Closed())
                        return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await server.protocol.handle(Closed())

    async def _is_taken(self, server: TCPServer, piece: memoryview) -> bool:
        """Whether the client took the piece in time."""
        with self.patience(shield=True) as scope:
            await server.stream.send_all(piece)
        return not scope.cancelled_caught

    @contextmanager
    def patience(self, *, shield: bool = False) -> Iterator[trio.CancelScope]:
        """As long as a client may take for one slice; for one task, which enters and leaves it."""
        deadline = min(trio.current_time() + self._seconds, self._latest)
        with trio.CancelScope(shield=shield, deadline=deadline) as scope:
            self._waiting.add(scope)
            try:
                yield scope
            finally:
                self._waiting.discard(scope)


def send_now(socket: trio.socket.SocketType, data: bytes) -> int:
    """How many bytes the kernel took. 0 also when the connection is broken: the locked path finds out."""
    try:
        return socket._sock.send(data)  # type: ignore[attr-defined, no-any-return]
    except OSError:
        return 0
