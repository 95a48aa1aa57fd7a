"""The life of one HTTP request: whatever it opened is closed when it ends, in whatever way it ends.

Two things go wrong between hypercorn and Quart, and are put right here. Quart enters a streamed body only after the
headers are out, and never if the client has gone by then: so a generation that the route opens is owned by the
connection, not by the body. And hypercorn's HTTP/1, while it sends the last piece of a response, already tells the
application of the disconnect, for which Quart cancels the very task that is sending: so the disconnect waits until the
last piece is out, or a connection that is to be closed would stay open for ever. How long the piece may take is
app/bounded_send.py's concern alone.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import cast

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, ASGISendEvent, HTTPScope
from quart import Request
from quart_trio.asgi import TrioASGIHTTPConnection

_KEY = "trillm.request_stack"


class Connection(TrioASGIHTTPConnection):  # type: ignore[misc]
    """Gives each request an exit stack that outlives its handler and is left in the same task."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        sent: trio.Event | None = None
        """Set once the last piece is out; None until it is begun."""
        closing = headers_with_unread_body(self.scope)
        """Sent along with an answer that does not wait for the body."""

        async def receive_after_last_piece() -> ASGIReceiveEvent:
            nonlocal closing
            event = await receive()
            if event["type"] == "http.request" and not event.get("more_body"):
                closing = []
            if event["type"] == "http.disconnect" and sent is not None:
                await sent.wait()
            return event

        async def send_to_the_end(message: ASGISendEvent) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *closing]}
            if message["type"] == "http.response.body" and not message.get("more_body"):
                sent = trio.Event()
                try:
                    await send(message)
                finally:
                    sent.set()
            else:
                await send(message)

        # HTTP/2 tells of a disconnect only when the client has given this request up: nothing is worth waiting for.
        early = is_http_1(self.scope)
        await super().__call__(receive_after_last_piece if early else receive, send_to_the_end)

    async def handle_request(self, nursery: trio.Nursery, request: Request, send: ASGISendCallable) -> None:
        async with AsyncExitStack() as stack:
            self.scope[_KEY] = stack
            await super().handle_request(nursery, request, send)


def is_http_1(scope: HTTPScope) -> bool:
    version: str = scope["http_version"]
    return version < "2"


def headers_with_unread_body(scope: HTTPScope) -> list[tuple[bytes, bytes]]:
    """What an answer has to say that is given before the request's body is read: in HTTP/1 the connection is closed
    then, and a client that is not told would send its next request into it.
    """
    sent = {name.lower(): value for name, value in scope["headers"]}
    has_body = b"transfer-encoding" in sent or sent.get(b"content-length", b"0") != b"0"
    return [(b"connection", b"close")] if has_body and is_http_1(scope) else []


def request_stack(request: Request) -> AsyncExitStack:
    """What is pushed here is left when the request ends: answered, failed, or abandoned by the client."""
    return cast("AsyncExitStack", request.scope[_KEY])
