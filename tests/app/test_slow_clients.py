"""Who sends slowly, or without end, is cut off, and meanwhile holds up nobody else."""

from __future__ import annotations

import os

import pytest
import trio

from app.cli import keep_files_ours
from app.limits import Limits
from tests.helpers.app_under_test import make_app
from tests.helpers.loopback import serve_on_loopback

pytestmark = pytest.mark.process

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def drip(port: int, first: bytes, rest: bytes, pause: float = 0.05) -> tuple[bytes, float]:
    """What comes back for bytes that are sent one at a time, and after how many seconds the connection was closed."""
    began = trio.current_time()
    answer = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                await stream.send_all(first)
                for byte in rest:
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(pause)
            except trio.BrokenResourceError:
                pass

        nursery.start_soon(send)
        try:
            async for piece in stream:
                answer += piece
        except trio.BrokenResourceError:
            pass
        nursery.cancel_scope.cancel()
    return answer, trio.current_time() - began


async def ask(port: int) -> bytes:
    body = b'{"prompt": "Hi", "max_tokens": 1}'
    length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    answer, _ = await drip(port, REQUEST + length + body, b"")
    return answer


async def test_headers_that_come_a_byte_at_a_time_are_not_waited_for_and_hold_up_nobody() -> None:
    """hypercorn's keep-alive time, 120 s as we set it, also bounds the time until a request's headers are complete."""
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(make_app().app, nursery, keep_alive_timeout=2)
        seconds: list[float] = []

        async def drip_headers() -> None:
            answer, took = await drip(port, REQUEST + b"X-Slow: ", b"a" * 400)
            assert b"200" not in answer
            seconds.append(took)

        async with trio.open_nursery() as dripping:
            for _ in range(20):
                dripping.start_soon(drip_headers)
            await trio.sleep(0.1)
            with trio.fail_after(5):
                assert (await ask(port)).startswith(b"HTTP/1.1 200")
            assert not seconds, "it was answered while the slow ones were still sending"
        assert len(seconds) == 20
        assert max(seconds) < 10
        nursery.cancel_scope.cancel()


async def test_a_body_that_comes_a_byte_at_a_time_is_a_408() -> None:
    under_test = make_app(limits=Limits(body_seconds=0.5))
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(under_test.app, nursery)
        answer, took = await drip(port, REQUEST + b"Content-Length: 4000\r\n\r\n", b" " * 400)
        nursery.cancel_scope.cancel()

    assert answer.startswith(b"HTTP/1.1 408")
    assert took < 10
    assert under_test.engine.prompts == []


@pytest.mark.parametrize("endless", [b"X-Long: " + b"a" * 70_000, b"X-Many: 1\r\n" * 6000], ids=["one", "many"])
async def test_headers_without_end_are_refused_at_a_size(endless: bytes) -> None:
    under_test = make_app()
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(under_test.app, nursery)
        answer, _ = await drip(port, REQUEST + endless, b"")
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
