"""A connected stream socket between two connectors: messages with their length in front, and blocks that are sent from
their frames and received into theirs, without a copy between.

Of trio's own streams none sends many buffers at once, receives in place, or passes a descriptor. Whatever goes wrong is
a FetchError ("broken"), after which, as after a cancellation, the stream may be torn: close it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, final

import trio

from actors.kv.lending import FetchError

T = TypeVar("T")

_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")
MAX_PARTS = 512
"""That one call of the kernel is given; it takes 1024."""


@final
class Wire:
    """Not more than one task reads at a time, and not more than one writes."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self.is_local = connected.family == socket.AF_UNIX
        if not self.is_local:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def peer_uid(self) -> int:
        """Of the process that connected, or listened. Of Unix sockets only."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        uid: int = _CREDENTIALS.unpack(credentials)[1]
        return uid

    async def send(self, message: bytes) -> None:
        await self.send_before(message, [])

    async def receive(self, most: int) -> bytearray:
        """The next message, of at most so many bytes."""
        head = bytearray(_LENGTH.size)
        await self.receive_into([memoryview(head)])
        (size,) = _LENGTH.unpack(head)
        if size > most:
            raise FetchError("broken", f"a message of {size} bytes where there may be {most}")
        message = bytearray(size)
        await self.receive_into([memoryview(message)])
        return message

    async def send_before(self, message: bytes, views: Sequence[memoryview]) -> None:
        """A message, and bytes after it that are none. The views are the caller's to release."""
        await self._send_all([memoryview(_LENGTH.pack(len(message))), memoryview(message), *views])

    async def _send_all(self, views: Sequence[memoryview]) -> None:
        await trio.lowlevel.checkpoint()
        size = sum(view.nbytes for view in views)
        sent = 0
        while sent < size:
            rest = _after(views, sent)
            try:
                sent += await self._when(trio.lowlevel.wait_writable, lambda: self._socket.sendmsg(rest[:MAX_PARTS]))  # noqa: B023
            finally:
                _release(rest)

    async def receive_into(self, views: Sequence[memoryview]) -> None:
        """Fills them all. They are the caller's to release."""
        await trio.lowlevel.checkpoint()
        size = sum(view.nbytes for view in views)
        received = 0
        while received < size:
            rest = _after(views, received)
            try:
                received += await self._when(trio.lowlevel.wait_readable, lambda: self._receive_some(rest))  # noqa: B023
            finally:
                _release(rest)

    def _receive_some(self, views: Sequence[memoryview]) -> int:
        count = self._socket.recvmsg_into(views[:MAX_PARTS])[0]
        if not count:
            raise FetchError("broken", "the connection ended")
        return count

    async def send_descriptor(self, descriptor: int) -> None:
        """Over a Unix socket; with one byte, which it comes with."""
        await trio.lowlevel.checkpoint()
        await self._when(trio.lowlevel.wait_writable, lambda: socket.send_fds(self._socket, [b"\0"], [descriptor]))

    async def receive_descriptor(self) -> int:
        """The caller's to close."""
        await trio.lowlevel.checkpoint()
        flags = socket.MSG_CMSG_CLOEXEC
        data, descriptors, _, _ = await self._when(
            trio.lowlevel.wait_readable, lambda: socket.recv_fds(self._socket, 1, 1, flags)
        )
        if not data or len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise FetchError("broken", "there came no descriptor where one was promised")
        return int(descriptors[0])

    async def _when(self, ready: Callable[[socket.socket], Awaitable[None]], attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except BlockingIOError:
                await ready(self._socket)
            except OSError as error:
                raise FetchError("broken", f"the connection broke: {error}") from error

    def is_quiet(self) -> bool:
        """It has not ended, and nothing has come that was not read: good for another question."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Idempotent; without a wait for what the peer has not taken."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def _after(views: Sequence[memoryview], skipped: int) -> list[memoryview]:
    """What is left of them beyond so many bytes, in new views."""
    rest = []
    for view in views:
        if skipped >= view.nbytes:
            skipped -= view.nbytes
        else:
            rest.append(view[skipped:])
            skipped = 0
    return rest


def _release(views: Sequence[memoryview]) -> None:
    for view in views:
        view.release()
