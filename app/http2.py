"""Who may speak HTTP/2: over TLS whoever has agreed on it, without TLS whoever begins with its preface. Nobody changes
to it in the midst of HTTP/1, which is no longer part of the protocol. Used by app/hypercorn_mended.py.

hypercorn's own class for it is replaced by app/http2_connection.py, which says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import h11
import hypercorn.protocol
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol
from hypercorn.trio.tcp_server import TCPServer

from app.bounded_send import BoundedSends
from app.http2_connection import Http2Connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"


async def stay(_: H11Protocol, __: h11.Request) -> None:
    """`H11Protocol._check_protocol` that changes to no other protocol. An upgrade that is not taken up is answered in
    HTTP/1.1, and what follows HTTP/2's preface is no request: the connection ends with a 400."""


async def change_at_preface(self: H11Protocol, request: h11.Request) -> None:
    """`H11Protocol._check_protocol` that knows HTTP/2's preface and no upgrade."""
    if (request.method, request.target, request.http_version) == (b"PRI", b"*", b"2.0"):
        raise H2ProtocolAssumedError(PREFACE + self.connection.trailing_data[0])


@contextmanager
def bounded_http2(sends: BoundedSends, *, enabled: bool) -> Iterator[None]:
    """In place of hypercorn's own class and methods, for connections that are opened meanwhile. Where it is not
    enabled, TLS must not offer it: app/tls.py does not, and hypercorn's command has its own configuration for that."""
    check, close = H11Protocol._check_protocol, TCPServer._initiate_server_close
    original = hypercorn.protocol.H2Protocol

    async def close_with_goodbye(server: TCPServer) -> None:
        protocol = server.protocol.protocol
        if not isinstance(protocol, Http2Connection) or await protocol.say_goodbye():
            await close(server)

    H11Protocol._check_protocol = change_at_preface if enabled else stay
    TCPServer._initiate_server_close = close_with_goodbye
    hypercorn.protocol.H2Protocol = partial(Http2Connection, sends)
    try:
        yield
    finally:
        H11Protocol._check_protocol, TCPServer._initiate_server_close = check, close
        hypercorn.protocol.H2Protocol = original
