"""The life of one HTTP request: whatever it opened is closed when it ends, in whatever way it ends.

Two things go wrong between hypercorn and Quart, and are put right here. Quart enters a streamed body only after the
headers are out, and never if the client has gone by then: so a generation that the route opens is owned by the
connection, not by the body. And hypercorn, while it sends the last piece of a response, already tells the application
of the disconnect, for which Quart cancels the very task that is sending: so the last piece is sent in a shield, or a
connection that is to be closed would stay open for ever.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import cast

import trio
from hypercorn.typing import ASGISendCallable, ASGISendEvent
from quart import Request
from quart_trio.asgi import TrioASGIHTTPConnection

_KEY = "trillm.request_stack"
_LAST_PIECE_SECONDS = 30.0
"""How long the end of a response may take to leave, when the client is told to have gone."""


class Connection(TrioASGIHTTPConnection):  # type: ignore[misc]
    """Gives each request an exit stack that outlives its handler and is left in the same task."""

    async def handle_request(self, nursery: trio.Nursery, request: Request, send: ASGISendCallable) -> None:
        async def send_to_the_end(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                with trio.move_on_after(_LAST_PIECE_SECONDS, shield=True):
                    await send(message)
            else:
                await send(message)

        async with AsyncExitStack() as stack:
            self.scope[_KEY] = stack
            await super().handle_request(nursery, request, send_to_the_end)


def request_stack(request: Request) -> AsyncExitStack:
    """What is pushed here is left when the request ends: answered, failed, or abandoned by the client."""
    return cast("AsyncExitStack", request.scope[_KEY])
