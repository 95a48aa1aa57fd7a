"""Over real sockets: who reads is served to the end, however slowly; who does not is given up, and hinders nobody."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from hypercorn.trio.tcp_server import TCPServer

from app.bounded_send import SLICE_BYTES, BoundedSends
from tests.helpers.app_under_test import make_app
from tests.helpers.loopback import serve_on_loopback

pytestmark = pytest.mark.process

BIG = b"x" * (12 * 2**20)
"""Far more than the kernel's buffers on both sides hold."""


@attrs.define(eq=False)
class Place:
    """A server whose /big is BIG in one piece, /stream is BIG in many, and /small is a few bytes."""

    sends: BoundedSends
    port: int = 0
    news: trio.Event = attrs.field(factory=trio.Event)
    ended: list[str] = attrs.field(factory=list)
    """Paths of the requests whose handlers have ended."""

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            while True:
                await send({"type": (await receive())["type"] + ".complete"})
        path = scope["path"]
        piece = {"/big": BIG, "/stream": BIG[:SLICE_BYTES]}.get(path, b"small")
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(len(BIG) // SLICE_BYTES if path == "/stream" else 0):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"" if path == "/stream" else piece})
        finally:
            self.ended.append(path)
            self.news.set()
            self.news = trio.Event()

    async def until_ended(self, path: str) -> None:
        while path not in self.ended:
            await self.news.wait()

    async def ask(self, path: str, buffer: int | None = None) -> trio.SocketStream:
        client = trio.socket.socket()
        if buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await client.connect(("127.0.0.1", self.port))
        stream = trio.SocketStream(client)
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return stream


@asynccontextmanager
async def open_place(seconds: float) -> AsyncIterator[Place]:
    place = Place(BoundedSends(seconds))
    with place.sends.installed():
        async with trio.open_nursery() as nursery:
            place.port = await serve_on_loopback(place, nursery)
            yield place
            nursery.cancel_scope.cancel()


async def read_all(stream: trio.SocketStream) -> bytes:
    async with stream:
        return b"".join([piece async for piece in stream])


async def is_broken(stream: trio.SocketStream) -> bool:
    """Whether its answer was cut off."""
    try:
        return len(await read_all(stream)) < len(BIG)
    except trio.BrokenResourceError:
        return True


@pytest.mark.parametrize("path", ["/big", "/stream"])
async def test_who_reads_nothing_is_cut_off_after_the_time_and_others_are_served(path):
    async with open_place(0.3) as place:
        began = trio.current_time()
        deaf = await place.ask(path)
        assert (await read_all(await place.ask("/small"))).endswith(b"small\r\n0\r\n\r\n")
        await place.until_ended(path)

        assert trio.current_time() - began >= 0.3
        assert (await read_all(await place.ask("/small"))).endswith(b"small\r\n0\r\n\r\n")
        assert await is_broken(deaf)


async def test_who_reads_slowly_gets_everything_although_the_whole_takes_longer_than_the_time():
    seconds = 0.5
    async with open_place(seconds) as place:
        began = trio.current_time()
        slow = await place.ask("/big", buffer=2**17)
        received = 0
        while data := await slow.receive_some(2**19):
            received += len(data)
            await trio.sleep(2 * seconds * len(data) / len(BIG))
        await slow.aclose()

        assert received >= len(BIG)
        assert trio.current_time() - began >= 2 * seconds


async def test_in_a_hurry_nobody_is_waited_for_and_who_reads_gets_everything():
    async with open_place(1000) as place:
        deaf = [await place.ask(path) for path in ("/big", "/stream")]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert place.ended == []
        began = trio.current_time()
        place.sends.hurry()
        late = await place.ask("/big")
        assert len(await read_all(await place.ask("/big"))) > len(BIG)
        for path in ("/big", "/stream"):
            await place.until_ended(path)
        while place.ended.count("/big") < 3:
            await place.news.wait()

        assert trio.current_time() - began < 10
        assert all([await is_broken(stream) for stream in (*deaf, late)])


async def test_a_big_answer_on_a_connection_that_is_to_be_closed_is_sent_whole():
    """The application is told of the disconnect while it still sends."""
    under_test = make_app()

    @under_test.app.get("/big")
    async def big() -> bytes:
        return BIG

    with BoundedSends(1000).installed():
        async with trio.open_nursery() as nursery:
            place = Place(BoundedSends(1000), await serve_on_loopback(under_test.app, nursery))
            answer = await read_all(await place.ask("/big"))
            nursery.cancel_scope.cancel()

    assert answer.endswith(BIG)


async def test_afterwards_hypercorn_has_its_own_method_again():
    before = TCPServer.protocol_send
    with BoundedSends(1).installed():
        assert TCPServer.protocol_send is not before

    assert TCPServer.protocol_send is before
