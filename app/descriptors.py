"""File descriptors: as many as this process may have, and some kept back from connections.

Each connection takes one. Whoever opens more than there are must not keep the supervisor from starting an actor again,
so a connection that would leave too few is closed at once. And hypercorn's trio worker keeps the descriptor of a
connection that its client has closed while it was idle, for all of the keep-alive time; here it is given back at once.
Used by app/hypercorn_mended.py.
"""

from __future__ import annotations

import logging
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import final
from weakref import WeakSet

import trio
from hypercorn.trio.tcp_server import TCPServer

from app.tls import HANDSHAKE_SECONDS

logger = logging.getLogger("trillm")

MOST = 65536
"""More than one server's connections; some systems allow thousands of millions, which nobody means."""
RESERVE = 64
"""What actors' pipes and sockets, model files and logs take, generously."""


def raise_descriptor_limit() -> int:
    """Raise this process's own (soft) limit as far as the system's (hard) one allows; the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else MOST
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


@final
class ConnectionLimit:
    """Of one server, whose process may have `limit` descriptors."""

    def __init__(self, limit: int) -> None:
        self._highest = limit - min(RESERVE, limit // 4)
        self._told_at = -math.inf

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Around three of hypercorn's own methods, for connections that come meanwhile."""
        original_run, original_read, original_wait = TCPServer.run, TCPServer._read_data, TCPServer._idle_timeout
        ended: WeakSet[TCPServer] = WeakSet()

        async def run(server: TCPServer) -> None:
            if self.is_too_many(socket_of(server.stream).fileno()):
                await trio.aclose_forcefully(server.stream)
            elif not isinstance(server.stream, trio.SSLStream) or await has_shaken_hands(server):
                await original_run(server)

        async def read_data(server: TCPServer) -> None:
            await original_read(server)
            ended.add(server)
            await server.idle_task.stop()

        async def idle_timeout(server: TCPServer) -> None:
            # Nothing more will come: there is nothing to keep it alive for. An answer that is finished just now would
            # begin to wait after the wait has been stopped.
            if server not in ended:
                await original_wait(server)

        TCPServer.run, TCPServer._read_data, TCPServer._idle_timeout = run, read_data, idle_timeout
        try:
            yield
        finally:
            TCPServer.run, TCPServer._read_data, TCPServer._idle_timeout = original_run, original_read, original_wait

    def is_too_many(self, descriptor: int) -> bool:
        """A new descriptor is the lowest free one, so its number tells how many are taken. Says so once a second."""
        if descriptor < self._highest:
            return False
        if trio.current_time() - self._told_at >= 1.0:
            self._told_at = trio.current_time()
            logger.error("a connection was closed: there are %s descriptors in use, see `ulimit -n`", descriptor)
        return True


def socket_of(stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> trio.socket.SocketType:
    return (stream.transport_stream if isinstance(stream, trio.SSLStream) else stream).socket


async def has_shaken_hands(server: TCPServer) -> bool:
    """Whether the client has agreed on keys in time, and before the server is to stop. hypercorn would not give the
    second up, and asks again, which costs nothing any more."""
    done = False
    async with trio.open_nursery() as nursery:

        async def give_up_at_the_end() -> None:
            await server.context.terminated.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up_at_the_end)
        seconds = min(server.config.ssl_handshake_timeout, HANDSHAKE_SECONDS)
        with trio.move_on_after(seconds), suppress(trio.BrokenResourceError):
            await server.stream.do_handshake()
            done = True
        nursery.cancel_scope.cancel()
    return done
