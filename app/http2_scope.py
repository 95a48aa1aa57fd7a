"""The headers of an HTTP/2 request as ASGI's scope, or the status of a request that there is none for. Pure.

Used by app/http2_connection.py.
"""

from __future__ import annotations

from urllib.parse import unquote

from hypercorn.config import Config
from hypercorn.typing import ConnectionState, HTTPScope

Headers = list[tuple[bytes, bytes]]
Address = tuple[str, int] | None

MAX_HEADER_BYTES = 16 * 2**10
"""Of one request, as HTTP/2 counts (32 more for each header), and about what HTTP/1 takes. More is a 431."""


def http2_scope(
    headers: Headers, config: Config, state: ConnectionState, scheme: str, client: Address, server: Address
) -> HTTPScope | int:
    """`headers` have passed h2's own checks: names are in lower case and not empty, pseudo-headers first and once."""
    if sum(len(name) + len(value) + 32 for name, value in headers) > MAX_HEADER_BYTES:
        return 431
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    method = pseudo[b":method"].decode("latin-1").upper()
    if method == "CONNECT":
        return 405
    path, _, query = pseudo[b":path"].partition(b"?")
    if not path.isascii() or not path.startswith((b"/", b"*")):
        return 400
    host = pseudo.get(b":authority", next((value for name, value in headers if name == b"host"), b""))
    if config.server_names and host.decode("latin-1") not in config.server_names:
        return 404
    others = [(name, value) for name, value in headers if not name.startswith(b":") and name != b"host"]
    return {
        "type": "http",
        "http_version": "2",
        "asgi": {"spec_version": "2.1", "version": "3.0"},
        "method": method,
        "scheme": scheme,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": config.root_path,
        "headers": [(b"host", host), *others],
        "client": client,
        "server": server,
        "state": state.copy(),
        "extensions": {},
    }
