"""Over real sockets: what is framed here is, byte for byte, what h11 would have sent."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import trio

from app.chunked_body import framed_here
from tests.helpers.loopback import serve_on_loopback

pytestmark = pytest.mark.process

PIECES = [b"data: 1\n\n", b"x" * 20_000, b"", b"\r\n", b"end"]


async def in_pieces(scope, receive, send) -> None:
    if scope["type"] == "lifespan":
        while True:
            await send({"type": (await receive())["type"] + ".complete"})
    known = scope["path"] == "/known"
    headers = [(b"content-length", b"%d" % sum(map(len, PIECES)))] if known else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in PIECES:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def answer_to(request: bytes, *, framed: bool) -> bytes:
    """Everything after the head."""
    with framed_here() if framed else nullcontext():
        async with trio.open_nursery() as nursery:
            port = await serve_on_loopback(in_pieces, nursery)
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(request)
                answer = b"".join([data async for data in stream])
            nursery.cancel_scope.cancel()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    return body


@pytest.mark.parametrize("line", ["GET / HTTP/1.1", "GET /known HTTP/1.1", "HEAD / HTTP/1.1", "GET / HTTP/1.0"])
async def test_the_pieces_of_a_body_travel_as_h11_sends_them(line):
    request = f"{line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode()

    assert await answer_to(request, framed=True) == await answer_to(request, framed=False)


async def test_a_connection_serves_its_next_request_after_a_chunked_one():
    request = b"GET / HTTP/1.1\r\nHost: x\r\n"
    twice = request + b"\r\n" + request + b"Connection: close\r\n\r\n"

    body = await answer_to(twice, framed=True)

    assert body.count(b"data: 1") == 2
