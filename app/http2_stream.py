"""One request of an HTTP/2 connection, as the application sees it: ASGI's scope, receive and send.

What a client sends waits here until the application takes it, and only then may the client send more, so that a request
whose body nobody reads holds up no other one. What the application sends waits for the client's window, as long as
app/bounded_send.py lets a client take. Made by app/http2_connection.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import final

import h2.connection
import h2.errors
import h2.exceptions
import trio
from hypercorn.typing import ASGIReceiveEvent, ASGISendEvent, HTTPResponseStartEvent, HTTPScope
from hypercorn.utils import suppress_body

from app.bounded_send import SLICE_BYTES, BoundedSends
from app.http2_scope import Headers

DISCARDED_BYTES = 2**20
"""Of a body that comes after its answer: read and dropped, since a client that is still sending takes the reset for the
whole answer, and loses what it was told. Who sends more than that is reset all the same."""
DISCARDED_SECONDS = 1.0
"""How long that is waited for."""
_OF_CONNECTION = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
"""Headers that HTTP/2 has no use for and forbids."""


@final
class Http2Stream:
    """Lives as long as its handler runs, which may be longer than HTTP/2's stream."""

    def __init__(
        self,
        number: int,
        scope: HTTPScope,
        connection: h2.connection.H2Connection,
        flush: Callable[[], Awaitable[None]],
        sends: BoundedSends,
        headers: Callable[[], Headers],
    ) -> None:
        """`flush` writes what the connection has to say; `headers` are added to each response."""
        self.number = number
        self.scope = scope
        self.response: HTTPResponseStartEvent | None = None
        self._h2 = connection
        self._flush = flush
        self._sends = sends
        self._headers = headers
        self._body = bytearray()
        self._unopened = 0
        """Bytes of the client's window that are used up and not yet given back, padding included."""
        self._has_all = False
        """Whether the request has come to its end."""
        self._told_all = False
        self._is_gone = False
        self._has_answered = False
        self._expects_continue = (b"expect", b"100-continue") in ((name, v.lower()) for name, v in scope["headers"])
        self._news = trio.Event()
        self._window = trio.Event()

    # ------------------------------------------------------------------ from the client

    def take(self, data: bytes, used: int) -> None:
        """A piece of the body that has used up so much of the window, which bounds what waits here."""
        self._body += data
        self._unopened += used
        self._news.set()

    def end(self) -> None:
        self._has_all = True
        self._news.set()

    def leave(self) -> None:
        """The client has given the request up, or is gone."""
        self._is_gone = True
        self._body.clear()
        self._news.set()
        self._window.set()

    def open_window(self) -> None:
        """There may be room for more."""
        self._window.set()
        self._window = trio.Event()

    # ------------------------------------------------------------------ for the application

    async def receive(self) -> ASGIReceiveEvent:
        while True:
            if self._is_gone:
                return {"type": "http.disconnect"}
            if self._body:
                return await self._next_piece()
            if self._has_all and not self._told_all:
                self._told_all = True
                return {"type": "http.request", "body": b"", "more_body": False}
            if self._expects_continue and self.response is None:
                self._expects_continue = False
                self._h2.send_headers(self.number, [(b":status", b"100")])
                await self._flush()
            self._news = trio.Event()
            await self._news.wait()

    async def _next_piece(self) -> ASGIReceiveEvent:
        data = bytes(self._body)
        self._body.clear()
        used, self._unopened = self._unopened, 0
        self._told_all = self._has_all
        if used and not self._has_all:
            self._h2.increment_flow_control_window(used, self.number)
            await self._flush()
        return {"type": "http.request", "body": data, "more_body": not self._told_all}

    async def send(self, message: ASGISendEvent) -> None:
        """What comes for a client that is gone is dropped, as in HTTP/1."""
        if self._is_gone:
            await trio.lowlevel.checkpoint()
            return
        try:
            if message["type"] == "http.response.start":
                await self._begin(message)
            elif message["type"] == "http.response.body":
                await self._go_on(message.get("body", b""), is_last=not message.get("more_body", False))
        except h2.exceptions.ProtocolError:
            self.leave()  # it has ended while we waited

    async def _begin(self, message: HTTPResponseStartEvent) -> None:
        assert self.response is None, "a second response to one request"
        self.response = message
        headers = [(bytes(name).strip().lower(), bytes(value).strip()) for name, value in message["headers"]]
        kept = [(name, value) for name, value in headers if name not in _OF_CONNECTION]
        self._h2.send_headers(self.number, [(b":status", b"%d" % message["status"]), *kept, *self._headers()])
        await self._flush()

    async def _go_on(self, data: bytes, *, is_last: bool) -> None:
        assert self.response is not None, "a body without a response"
        if suppress_body(self.scope["method"], self.response["status"]):
            data = b""
        for start in range(0, max(len(data), 1), SLICE_BYTES):
            end = start + SLICE_BYTES
            with self._sends.patience() as scope:
                await self._send_slice(data[start:end], is_last=is_last and end >= len(data))
            if scope.cancelled_caught:
                await self.cut_off(h2.errors.ErrorCodes.CANCEL)
            if self._is_gone:
                return

    async def _send_slice(self, piece: bytes, *, is_last: bool) -> None:
        while piece and not self._is_gone:
            window = self._h2.local_flow_control_window(self.number)
            size = min(len(piece), window, self._h2.max_outbound_frame_size)
            if size <= 0:
                await self._window.wait()
                continue
            part, piece = piece[:size], piece[size:]
            self._h2.send_data(self.number, part, end_stream=is_last and not piece)
            self._has_answered = is_last and not piece
            await self._flush()
        if is_last and not self._has_answered and not self._is_gone:
            self._h2.end_stream(self.number)
            self._has_answered = True
            await self._flush()

    # ------------------------------------------------------------------ its end

    async def cut_off(self, code: h2.errors.ErrorCodes) -> None:
        """End it from our side, and only it."""
        self.leave()
        self._h2.reset_stream(self.number, code)
        await self._flush()

    def finish(self) -> None:
        """The handler has ended: what is missing of its answer is said. To be flushed."""
        if self._is_gone or self._has_answered:
            return
        with suppress(h2.exceptions.ProtocolError):  # it may have ended already, from the other side
            if self.response is None:
                self._h2.send_headers(self.number, [(b":status", b"500"), *self._headers()], end_stream=True)
                self._has_answered = True
            else:
                self.leave()
                self._h2.reset_stream(self.number, h2.errors.ErrorCodes.INTERNAL_ERROR)

    async def discard_rest(self) -> None:
        """After the answer: take what is still on its way of the request, within bounds."""
        left = DISCARDED_BYTES
        with self._sends.patience(), trio.move_on_after(DISCARDED_SECONDS):
            while left > 0 and not (self._has_all or self._is_gone):
                message = await self.receive()
                if message["type"] == "http.request":
                    left -= len(message["body"])

    def close(self) -> None:
        """HTTP/2's stream ends, whatever has not come by now: nobody wants it. To be flushed."""
        if not (self._is_gone or self._has_all):
            with suppress(h2.exceptions.ProtocolError):
                self._h2.reset_stream(self.number, h2.errors.ErrorCodes.NO_ERROR)
