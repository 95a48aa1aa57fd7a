"""There are no WebSocket routes. Quart answers who asks for one where there is an HTTP route by a traceback in the log,
and that before any key is asked for where a route is public. Put around the application by app/front.py.
"""

from __future__ import annotations

from typing import final

from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope


@final
class NoWebsocketsMiddleware:
    """Closes each before it is open: the client gets 403."""

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "there are no WebSockets here"})
        else:
            await self._app(scope, receive, send)
