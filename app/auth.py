"""The door: without a right key nothing but a few public routes is reached.

Pure ASGI and outermost, so that the key is judged before the body is read and before any routing. It denies by default:
the routes that need no key are listed by their exact spelling, so whatever odd spelling of another path is sent, it
needs a key, whether or not it would reach a handler.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Iterable, Sequence

from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

from app.failures import error_body
from protocol.errors import BadRequestError, TrillmError

PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping", "/version", "/metrics"})
"""What probes and Prometheus read. They run no model and tell nothing of any request."""


class InvalidKeyError(BadRequestError):
    status = 401
    code = "invalid_api_key"


class AuthenticationMiddleware:
    """Lets a request through if it carries one of the keys as `Authorization: Bearer …`, or is for a public path.

    Keys are kept as SHA-256 digests, and each comparison takes constant time over all of them. OPTIONS passes: the
    framework answers it and no handler runs.
    """

    def __init__(self, app: ASGIFramework, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] not in ("http", "websocket") or self._passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "invalid API key"})
        else:
            await _refuse(send, InvalidKeyError("Missing or invalid API key: send `Authorization: Bearer <key>`"))

    def _passes(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            return True
        path = scope["path"]
        root = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]  # as Quart does before it routes
        return path in PUBLIC_PATHS or self._is_known(list(scope["headers"]))

    def _is_known(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        values = [value for name, value in headers if name.lower() == b"authorization"]
        if len(values) != 1:
            return False
        scheme, _, token = values[0].strip().partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        known = False
        for candidate in self._digests:  # all of them: no early exit tells which key was nearly right
            known |= secrets.compare_digest(digest, candidate)
        return known and scheme.lower() == b"bearer"


class LoopbackMiddleware:
    """Without keys, only who comes in over a loopback address (or a Unix socket) is served.

    `trillm serve` does not listen elsewhere then; hypercorn's own command binds what it is told to, without asking us.
    """

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] not in ("http", "websocket") or _is_local(scope.get("server")):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no API key is configured"})
        else:
            await _refuse(send, NotLocalError("This server has no API key, so it answers on loopback addresses only"))


class NotLocalError(BadRequestError):
    status = 403
    code = "loopback_only"


def _is_local(server: tuple[str, int | None] | None) -> bool:
    """Whether the address that the connection came in on is a loopback address or a Unix socket's path."""
    if server is None or server[1] is None:
        return True
    try:
        return ipaddress.ip_address(server[0]).is_loopback
    except ValueError:
        return False


async def _refuse(send: ASGISendCallable, error: TrillmError) -> None:
    body = error_body(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, InvalidKeyError):
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
