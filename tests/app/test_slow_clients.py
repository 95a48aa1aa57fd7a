"""Who sends slowly, or without end, is cut off, and meanwhile holds up nobody else."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

import pytest
import trio

from app.cli import keep_files_ours
from app.limits import Limits
from tests.helpers.app_under_test import make_app
from tests.helpers.loopback import serve_on_loopback

pytestmark = pytest.mark.process

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def send(port: int, data: bytes) -> bytes:
    """What comes back until the connection is closed."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(data)
        return await rest_of(stream)


async def drip(port: int, first: bytes, byte: bytes, begun: trio.Event) -> bytes:
    """What comes back for the same byte again and again, for as long as the server lets it: who waits for the end of it
    waits for ever. `begun` is set after some of them."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as nursery:

        async def keep_sending() -> None:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(first)
                for count in itertools.count():
                    await stream.send_all(byte)
                    await trio.sleep(0.05)
                    if count == 3:
                        begun.set()

        nursery.start_soon(keep_sending)
        answer = await rest_of(stream)
        nursery.cancel_scope.cancel()
    return answer


async def rest_of(stream: trio.SocketStream) -> bytes:
    answer = b""
    with suppress(trio.BrokenResourceError):
        async for piece in stream:
            answer += piece
    return answer


async def ask(port: int) -> bytes:
    body = b'{"prompt": "Hi", "max_tokens": 1}'
    return await send(port, REQUEST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)


async def test_headers_that_come_a_byte_at_a_time_hold_up_nobody() -> None:
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(make_app().app, nursery, keep_alive_timeout=120)
        cut_off: list[bytes] = []

        async def drip_headers(begun: trio.Event) -> None:
            cut_off.append(await drip(port, REQUEST + b"X-Slow: ", b"a", begun))

        dripping = [trio.Event() for _ in range(20)]
        for begun in dripping:
            nursery.start_soon(drip_headers, begun)
        for begun in dripping:
            await begun.wait()
        assert (await ask(port)).startswith(b"HTTP/1.1 200")
        assert not cut_off, "it was answered while the slow ones were still sending"
        nursery.cancel_scope.cancel()


async def test_headers_that_come_a_byte_at_a_time_are_not_waited_for() -> None:
    """hypercorn's keep-alive time, 120 s as we set it, also bounds the time until a request's headers are complete."""
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(make_app().app, nursery, keep_alive_timeout=1)
        assert b"200" not in await drip(port, REQUEST + b"X-Slow: ", b"a", trio.Event())
        nursery.cancel_scope.cancel()


async def test_a_body_that_comes_a_byte_at_a_time_is_a_408() -> None:
    under_test = make_app(limits=Limits(body_seconds=0.5))
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(under_test.app, nursery)
        answer = await drip(port, REQUEST + b"Content-Length: 400000\r\n\r\n", b" ", trio.Event())
        nursery.cancel_scope.cancel()

    assert answer.startswith(b"HTTP/1.1 408")
    assert under_test.engine.prompts == []


@pytest.mark.parametrize("endless", [b"X-Long: " + b"a" * 70_000, b"X-Many: 1\r\n" * 6000], ids=["one", "many"])
async def test_headers_without_end_are_refused_at_a_size(endless: bytes) -> None:
    under_test = make_app()
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(under_test.app, nursery)
        answer = await send(port, REQUEST + endless)
        nursery.cancel_scope.cancel()

    assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert under_test.engine.prompts == []


def test_nothing_that_is_written_is_another_user_s_to_change() -> None:
    before = os.umask(0o002)
    try:
        keep_files_ours()
        assert os.umask(0) == 0o022
        os.umask(0o077)
        keep_files_ours()
        assert os.umask(0) == 0o077
    finally:
        os.umask(before)
