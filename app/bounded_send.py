"""hypercorn's trio worker sends inside a shield without a deadline: a client that stops reading would hold its handler,
and with it the shutdown, for ever. This replaces that one method by one that gives up after a while.

It also tries to send at once before it takes the lock and the scheduler's round trip, which is what a streamed token's
few bytes nearly always can.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer

YIELD_EVERY = 8
"""Sends that may go straight through before other tasks get their turn."""

Send = Callable[[TCPServer, Event], Awaitable[None]]


def bounded(original: Send, seconds: float) -> Send:
    """`TCPServer.protocol_send` with a deadline of `seconds` on each send. Other events go to the original."""
    sends = 0

    async def protocol_send(self: TCPServer, event: Event) -> None:
        nonlocal sends
        if not isinstance(event, RawData):
            return await original(self, event)
        sent = 0
        if isinstance(self.stream, trio.SocketStream) and not self.send_lock.locked():
            sent = send_now(self.stream.socket, event.data)
        if sent == len(event.data):
            sends += 1
            if sends % YIELD_EVERY == 0:
                await trio.lowlevel.checkpoint()
            return None
        return await send_rest(self, event.data[sent:], seconds)

    return protocol_send


def send_now(socket: trio.socket.SocketType, data: bytes) -> int:
    """How many bytes the kernel took. 0 also when the connection is broken: the locked path finds out."""
    try:
        return socket._sock.send(data)  # type: ignore[attr-defined, no-any-return]
    except OSError:
        return 0


async def send_rest(server: TCPServer, data: bytes, seconds: float) -> None:
    async with server.send_lock:
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds) as scope:
                await server.stream.send_all(data)
            if scope.cancelled_caught:
                await trio.aclose_forcefully(server.stream)
                await server.protocol.handle(Closed())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await server.protocol.handle(Closed())


def bound_sends(seconds: float) -> None:
    """Replace the method for this process. Idempotent in effect only if called once: both launch ways do."""
    TCPServer.protocol_send = bounded(TCPServer.protocol_send, seconds)
