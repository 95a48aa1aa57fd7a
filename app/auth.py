"""The door: without a right key nothing but a few public routes is reached.

Pure ASGI and outermost, so that the key is judged before the body is read and before any routing. It denies by default:
the routes that need no key are listed by their exact spelling, so whatever odd spelling of another path is sent, it
needs a key, whether or not it would reach a handler.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence

from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

from app.connection import headers_with_unread_body
from app.failures import error_body_at
from app.messages_error import REQUEST_ID, is_messages_path
from app.request_label import HEADER, request_label
from protocol.errors import InvalidKeyError, NotLocalError, TrillmError
from protocol.net_address import is_local, is_loopback

PUBLIC_PATHS = frozenset({"/health", "/ready", "/ping", "/version", "/metrics", "/load", "/docs", "/openapi.json"})
"""What probes, Prometheus and browsers read. They run no model and tell nothing of any request."""

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:]*))(?::[0-9]*)?")


class AuthenticationMiddleware:
    """Lets a request through if it carries one of the keys as `Authorization: Bearer …`, or is for a public path.

    On the paths of Anthropic's API the key may come as `X-Api-Key: …` instead, or as well: many of its clients send it
    so.

    Keys are kept as SHA-256 digests, and each comparison takes constant time over all of them. OPTIONS passes: the
    framework answers it and no handler runs.
    """

    def __init__(self, app: ASGIFramework, keys: Iterable[str], public: frozenset[str] = frozenset()) -> None:
        """`public`: further paths that need no key, each by its exact spelling."""
        self._app = app
        self._public = PUBLIC_PATHS | public
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] not in ("http", "websocket") or self._passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "invalid API key"})
        else:
            other = " or `X-Api-Key: <key>`" if is_messages_path(routed_path(scope)) else ""
            told = f"Missing or invalid API key: send `Authorization: Bearer <key>`{other}"
            await refuse(scope, send, InvalidKeyError(told))

    def _passes(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            return True
        path = routed_path(scope)
        return path in self._public or self._is_known(list(scope["headers"]), is_messages_path(path))

    def _is_known(self, headers: Sequence[tuple[bytes, bytes]], may_be_bare: bool) -> bool:
        """Whether there is exactly one credential, and it is right. It may stand in both headers: a client of
        Anthropic's API that finds it in two environment variables sends it twice."""
        values = [value.strip() for name, value in headers if name.lower() == b"authorization"]
        bare = [value.strip() for name, value in headers if name.lower() == b"x-api-key"] if may_be_bare else []
        if len(values) > 1 or len(bare) > 1 or not (values or bare):
            return False
        scheme, _, token = values[0].partition(b" ") if values else (b"Bearer", b"", bare[0])
        if bare and not secrets.compare_digest(bare[0], token.strip()):
            return False
        digest = hashlib.sha256(token.strip()).digest()
        known = False
        for candidate in self._digests:  # all of them: no early exit tells which key was nearly right
            known |= secrets.compare_digest(digest, candidate)
        return known and scheme.lower() == b"bearer"


class LoopbackMiddleware:
    """Without keys, only who comes in over a loopback address (or a Unix socket) is served, and asks for it by a name
    that is always this machine's.

    `trillm serve` does not listen elsewhere then; hypercorn's own command binds what it is told to, without asking us.
    The name matters because a web page may let its own name point to 127.0.0.1, and its visitor's browser then takes
    the server for the page's own.
    """

    def __init__(self, app: ASGIFramework) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = _refusal(scope.get("server"), list(scope["headers"]))
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no API key is configured"})
        else:
            await refuse(scope, send, NotLocalError(f"This server has no API key, so it {refusal}"))


def routed_path(scope: Scope) -> str:
    """Without the server's prefix, as Quart takes it off before it routes."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _refusal(server: tuple[str, int | None] | None, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Why who comes in at this address with these headers is turned away."""
    if server is None or server[1] is None:
        return None  # a Unix socket, which no web page reaches
    if not is_loopback(server[0]):
        return "answers on loopback addresses only"
    hosts = [value for name, value in headers if name.lower() == b"host"]
    if all(_is_local_name(host) for host in hosts):  # HTTP/1.0 need not send one
        return None
    return "answers only to the names localhost, 127.0.0.1 and [::1] (in the Host header)"


def _is_local_name(host: bytes) -> bool:
    """Whether a Host header's value, without its port, is localhost (RFC 6761: with all below it) or a loopback IP."""
    match = _HOST.fullmatch(host.decode("latin-1").strip().lower())
    if match is None:
        return False
    return is_local((match["address"] or match["name"]).removesuffix("."))


async def refuse(scope: HTTPScope, send: ASGISendCallable, error: TrillmError) -> None:
    sent = next((value for name, value in scope["headers"] if name.lower() == HEADER.lower().encode()), b"")
    label = request_label(sent.decode("latin-1"))
    path = routed_path(scope)
    body = error_body_at(path, error, label)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (HEADER.lower().encode(), label.encode()),
        *headers_with_unread_body(scope),
    ]
    if is_messages_path(path):
        headers.append((REQUEST_ID.lower().encode(), label.encode()))
    if isinstance(error, InvalidKeyError):
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
