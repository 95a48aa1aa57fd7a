"""The life of one HTTP request: whatever it opened is closed when it ends, in whatever way it ends.

Quart enters a streamed body only after the headers are out, and never if the client has gone by then. So a generation
that the route opens is owned by the connection, not by the body.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import cast

import trio
from hypercorn.typing import ASGISendCallable
from quart import Request
from quart_trio.asgi import TrioASGIHTTPConnection

_KEY = "trillm.request_stack"


class Connection(TrioASGIHTTPConnection):  # type: ignore[misc]
    """Gives each request an exit stack that outlives its handler and is left in the same task."""

    async def handle_request(self, nursery: trio.Nursery, request: Request, send: ASGISendCallable) -> None:
        async with AsyncExitStack() as stack:
            self.scope[_KEY] = stack
            await super().handle_request(nursery, request, send)


def request_stack(request: Request) -> AsyncExitStack:
    """What is pushed here is left when the request ends: answered, failed, or abandoned by the client."""
    return cast("AsyncExitStack", request.scope[_KEY])
