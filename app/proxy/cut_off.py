"""An answer whose head is out and that can neither be finished nor tell of an error. Nobody is to take it for whole.

Raised by app/proxy/passed_body.py. When an application returns with an answer unfinished, its connection is closed, or
its stream reset in HTTP/2.
"""

from __future__ import annotations

from typing import final

from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

from protocol.errors import TrillmError


class CutOffError(TrillmError):
    code = "cut_off"


@final
class CutOffMiddleware:
    """Has the error end here: it has been logged with the server that it came from."""

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        try:
            await self._app(scope, receive, send)
        except* CutOffError:  # in a group, since it comes out of the request's nursery
            pass
