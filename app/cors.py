"""Which web pages may use this server: what a browser is told (CORS), and which pages a server without keys turns away.

Pure ASGI and around all but the access log, so that a page may read refusals, too, and a browser's question before a
request (a preflight) is answered without a key and without anything being run. Put there by app/front.py.
"""

from __future__ import annotations

from typing import final
from urllib.parse import urlsplit

from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope, Scope

from app.auth import refuse
from app.cors_policy import CorsPolicy, Headers
from protocol.errors import NotAllowedOriginError

MAX_AGE_SECONDS = 600
"""How long a browser may go by the answer to a preflight."""


@final
class CorsMiddleware:
    """Tells browsers what the policy allows. With `has_keys` False, it also refuses requests that a page of another
    origin sends: a form or a script can send some without asking first, and there is no key to stop them."""

    def __init__(self, app: ASGIFramework, policy: CorsPolicy, *, has_keys: bool) -> None:
        self._app = app
        self._policy = policy
        self._has_keys = has_keys

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        origins = values(scope, b"origin")
        allowed = len(origins) == 1 and self._policy.allows_origin(origins[0])
        if not allowed and any(not self._may_come(scope, origin) for origin in origins):
            await self._turn_away(scope, send, origins[0])
        elif scope["type"] == "websocket":
            await self._app(scope, receive, send)
        elif allowed and scope["method"] == "OPTIONS" and values(scope, b"access-control-request-method"):
            await self._answer_preflight(scope, send, origins[0])
        else:
            await self._app(scope, receive, self._telling(send, origins[0] if allowed else None))

    def _may_come(self, scope: Scope, origin: bytes) -> bool:
        """Whether a request of a page that is not allowed by name may be looked at at all: its key decides, or it is a
        page of our own. A Unix socket is not reached by pages, but by the proxy that the operator has put before it."""
        server = scope.get("server")
        if self._has_keys or server is None or server[1] is None:
            return True
        host = values(scope, b"host")
        return len(host) == 1 and is_page_of(origin, host[0])

    async def _turn_away(self, scope: Scope, send: ASGISendCallable, origin: bytes) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "the page's origin is not allowed"})
            return
        told = origin[:100].decode("latin-1")
        error = NotAllowedOriginError(
            f"This server has no API key, so it answers no web page of another origin: {told}. "
            "--allowed-origins names those that may"
        )
        await refuse(scope, self._telling(send, None), error)

    async def _answer_preflight(self, scope: HTTPScope, send: ASGISendCallable, origin: bytes) -> None:
        """204 with what may be sent, or a 403 that says what may not."""
        method = values(scope, b"access-control-request-method")[0]
        lines = values(scope, b"access-control-request-headers")
        wanted = [name for line in lines for each in line.split(b",") if (name := each.strip())]
        forbidden = self._policy.forbidden_header(wanted)
        if not self._policy.allows_method(method):
            what = f"the method {method[:40].decode('latin-1')} (--allowed-methods)"
        elif forbidden is not None:
            what = f"the header {forbidden[:40].decode('latin-1')} (--allowed-headers)"
        else:
            headers = [
                *self._policy.leave(origin),
                (b"access-control-allow-methods", method),
                (b"access-control-max-age", str(MAX_AGE_SECONDS).encode()),
                (b"vary", b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
            ]
            if wanted:
                headers.append((b"access-control-allow-headers", b", ".join(wanted)))
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await refuse(scope, self._telling(send, origin), NotAllowedOriginError(f"Web pages may not use {what}"))

    def _telling(self, send: ASGISendCallable, origin: bytes | None) -> ASGISendCallable:
        """`send` that adds to each answer what a page of this origin may do; None: it may do nothing."""
        if not self._policy.origins:
            return send
        added: Headers = [(b"vary", b"Origin")]
        if origin is not None:
            added += self._policy.leave(origin)

        async def send_with_leave(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        return send_with_leave


def values(scope: Scope, name: bytes) -> list[bytes]:
    """A header's values, one for each time that it was sent."""
    return [value.strip() for key, value in scope["headers"] if key.lower() == name]


def is_page_of(origin: bytes, host: bytes) -> bool:
    """Whether a page of this origin has come from this very server, as its /docs has."""
    try:
        return urlsplit(origin.decode("latin-1")).netloc == host.decode("latin-1") != ""
    except ValueError:  # no address at all
        return False
