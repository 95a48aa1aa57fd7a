"""HTTP/2 with bounds: each request of a connection is its own affair, and what costs its sender nothing is counted."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import httpx
import pytest
import trio
from h2.errors import ErrorCodes
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio import serve
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from trio.testing import wait_all_tasks_blocked

from app.bounded_send import BoundedSends
from app.descriptors import ConnectionLimit
from app.http2 import bounded_http2
from app.http2_connection import MAX_STREAMS
from app.http2_floods import FRAMES, RESETS
from app.http2_stream import DISCARDED_BYTES, DISCARDED_SECONDS
from app.limits import Limits
from tests.helpers.app_under_test import make_app
from tests.helpers.http2_client import Http2Client, open_http2
from tests.helpers.loopback import serve_on_loopback

pytestmark = pytest.mark.process

BIG = b"x" * 2**20
ODD = range(1, 10**6, 2)


@attrs.define(eq=False)
class Place:
    """An application whose paths do what tests need: /small, /big, /wait (until `go`), /echo, /ignore (its body),
    /refuse (before the body), /fail, /half (fails after half an answer)."""

    sends: BoundedSends
    port: int = 0
    stop: trio.Event = attrs.field(factory=trio.Event)
    go: trio.Event = attrs.field(factory=trio.Event)
    num_begun: int = 0
    num_running: int = 0
    left: list[str] = attrs.field(factory=list)
    """Paths of requests whose handlers were told that the client is gone."""
    news: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                await send({"type": (await receive())["type"] + ".complete"})
        self.num_begun += 1
        self.num_running += 1
        self.tell()
        try:
            await self.answer(scope, receive, send)
        finally:
            self.num_running -= 1
            self.tell()

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        body = b"small"
        match scope["path"]:
            case "/big":
                body = BIG
            case "/wait" | "/ignore":
                async with trio.open_nursery() as nursery:
                    if scope["path"] == "/wait":
                        nursery.start_soon(self.notice, scope["path"], receive, nursery)
                    await self.go.wait()
                    nursery.cancel_scope.cancel()
            case "/echo":
                body = b""
                while (message := await receive())["type"] == "http.request":
                    body += message["body"]
                    if not message["more_body"]:
                        break
            case "/fail":
                raise ValueError("as the test wants it")
        await send({"type": "http.response.start", "status": 401 if scope["path"] == "/refuse" else 200, "headers": []})
        if scope["path"] == "/half":
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise ValueError("as the test wants it")
        await send({"type": "http.response.body", "body": body})

    async def notice(self, path: str, receive: Any, nursery: trio.Nursery) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.append(path)
        self.tell()
        nursery.cancel_scope.cancel()

    def tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    async def until_running(self, count: int) -> None:
        while self.num_running != count:
            await self.news.wait()


@asynccontextmanager
async def open_place(seconds: float = 1000, app: Any = None, **settings: Any) -> AsyncIterator[Place]:
    place = Place(BoundedSends(seconds))
    config = Config()
    config.bind, config.accesslog, config.errorlog, config.graceful_timeout = ["127.0.0.1:0"], None, None, 20
    for name, value in settings.items():
        setattr(config, name, value)
    limit = ConnectionLimit(100_000)
    with trio.fail_after(30), place.sends.installed(), bounded_http2(place.sends, enabled=True), limit.installed():
        async with trio.open_nursery() as nursery:
            start = partial(serve, app or place, config, shutdown_trigger=place.stop.wait)
            place.port = int((await nursery.start(start))[0].rpartition(":")[2])
            yield place
            nursery.cancel_scope.cancel()


async def test_many_requests_share_a_connection_and_are_answered_as_they_get_ready() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        waiting = [await client.ask("/wait") for _ in range(20)]
        assert await client.until_ended(await client.ask("/small")) == (200, b"small")
        assert await client.until_ended(await client.ask("/big")) == (200, BIG)
        place.go.set()
        assert [await client.until_ended(number) for number in waiting] == [(200, b"small")] * 20
        await place.until_running(0)


async def test_a_body_comes_back_whole_though_it_is_larger_than_the_window() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        number = await client.ask("/echo", method="POST", body=None)
        pieces = client.body(number, BIG)
        window = 65535  # of the stream and of the connection; each is opened again as the body is read
        opened = [window, window]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.until_ended, number)
            sent = 0
            for piece in pieces:
                while sent + len(piece.data) > min(opened):
                    opened = [
                        window + sum(f.window_increment for f in client.of(WindowUpdateFrame) if f.stream_id == which)
                        for which in (0, number)
                    ]
                    await trio.sleep(0.001)
                await client.send(piece)
                sent += len(piece.data)
        assert await client.until_ended(number) == (200, BIG)


async def test_a_reset_ends_that_request_and_no_other() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        numbers = [await client.ask("/wait") for _ in range(3)]
        await place.until_running(3)
        await client.send(RstStreamFrame(numbers[1], error_code=ErrorCodes.CANCEL))
        await place.until_running(2)
        assert place.left == ["/wait"]
        place.go.set()
        assert [await client.until_ended(number) for number in numbers[::2]] == [(200, b"small")] * 2


async def test_a_closed_connection_ends_all_its_requests() -> None:
    async with open_place() as place:
        async with open_http2(place.port) as client:
            for _ in range(3):
                await client.ask("/wait")
            await place.until_running(3)
        await place.until_running(0)
        assert place.left == ["/wait"] * 3


async def test_who_gives_no_window_is_cut_off_after_the_time_and_others_on_the_connection_are_served() -> None:
    async with open_place(0.3) as place, open_http2(place.port, window=0) as client:
        began = trio.current_time()
        deaf = await client.ask("/big")
        served = await client.ask("/small")
        await client.send(WindowUpdateFrame(served, window_increment=100))
        assert await client.until_ended(served) == (200, b"small")
        assert trio.current_time() - began < 0.3
        assert await client.until_ended(deaf) == (0, b"")
        assert trio.current_time() - began >= 0.3
        await place.until_running(0)
        again = await client.ask("/small")
        await client.send(WindowUpdateFrame(again, window_increment=100))
        assert await client.until_ended(again) == (200, b"small")


async def test_who_opens_its_window_slowly_gets_everything_although_the_whole_takes_longer_than_the_time() -> None:
    seconds = 0.3
    async with open_place(seconds) as place, open_http2(place.port, window=0) as client:
        began = trio.current_time()
        await client.send(WindowUpdateFrame(0, window_increment=len(BIG)))
        number = await client.ask("/big")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.until_ended, number)
            for _ in range(16):
                await client.send(WindowUpdateFrame(number, window_increment=2**16))
                await trio.sleep(2.5 * seconds / 16)
        assert await client.until_ended(number) == (200, BIG)
        assert trio.current_time() - began >= 2 * seconds


async def test_who_does_not_read_its_socket_is_cut_off_with_all_its_requests() -> None:
    async with open_place(0.3) as place:
        raw = trio.socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await raw.connect(("127.0.0.1", place.port))
        client = Http2Client(trio.SocketStream(raw))
        await client.begin()
        for _ in range(20):
            await client.ask("/big")
        while place.num_begun < 20:
            await place.news.wait()
        await place.until_running(0)
        await client.stream.aclose()


async def test_in_a_hurry_nobody_waits_for_a_window() -> None:
    async with open_place(1000) as place, open_http2(place.port, window=0) as client:
        number = await client.ask("/big")
        await client.until(HeadersFrame, number)
        began = trio.current_time()
        place.sends.hurry()
        assert await client.until_ended(number) == (0, b"")
        assert trio.current_time() - began < 5


async def test_a_request_whose_body_nobody_reads_holds_up_no_other_and_little_memory() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        ignored = await client.ask("/ignore", method="POST", body=None)
        await client.send(*client.body(ignored, b"a" * 65535, ends=False)[:4])
        assert await client.until_ended(await client.ask("/echo", method="POST", body=b"b" * 60_000)) == (
            200,
            b"b" * 60_000,
        )
        await client.send(DataFrame(ignored, data=b"one too many"))
        goaway = await client.until(GoAwayFrame)
        assert goaway.error_code == ErrorCodes.FLOW_CONTROL_ERROR
        place.go.set()
        await client.until_closed()


async def test_a_body_that_comes_after_its_answer_is_dropped_up_to_a_size_and_harms_nobody() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        number = await client.ask("/refuse", method="POST", body=None)
        assert await client.until_ended(number) == (401, b"small")
        for _ in range(8):  # more than one window, of the stream and of the connection
            await client.send(*client.body(number, b"a" * 16384, ends=False))
            assert await client.until_ended(await client.ask("/small")) == (200, b"small")
        assert not client.of(RstStreamFrame)
        for _ in range(DISCARDED_BYTES // 16384):
            await client.send(*client.body(number, b"a" * 16384, ends=False))
            assert await client.until_ended(await client.ask("/small")) == (200, b"small")
        assert (await client.until(RstStreamFrame, number)).error_code == ErrorCodes.NO_ERROR
        assert await client.until_ended(await client.ask("/small")) == (200, b"small")


async def test_a_body_that_does_not_come_after_its_answer_is_waited_for_and_then_reset() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        began = trio.current_time()
        number = await client.ask("/refuse", method="POST", body=None)
        assert await client.until_ended(number) == (401, b"small")
        assert (await client.until(RstStreamFrame, number)).error_code == ErrorCodes.NO_ERROR
        assert DISCARDED_SECONDS <= trio.current_time() - began < DISCARDED_SECONDS + 5


async def test_in_a_hurry_or_after_a_reset_nobody_waits_for_such_a_body() -> None:
    async with open_place(1000, keep_alive_timeout=0.05) as place, open_http2(place.port) as client:
        number = await client.ask("/refuse", method="POST", body=None)
        assert await client.until_ended(number) == (401, b"small")
        await client.send(RstStreamFrame(number, error_code=ErrorCodes.CANCEL))
        began = trio.current_time()
        await client.until_closed()  # as an idle one is
        assert trio.current_time() - began < DISCARDED_SECONDS
    async with open_place(0.2) as place, open_http2(place.port) as client:
        number = await client.ask("/refuse", method="POST", body=None)
        began = trio.current_time()
        assert (await client.until(RstStreamFrame, number)).error_code == ErrorCodes.NO_ERROR
        assert trio.current_time() - began < DISCARDED_SECONDS


@pytest.mark.parametrize(("key", "size", "status"), [("wrong", 900_000, 401), ("sesame", 900_000, 413)])
async def test_a_client_library_hears_an_answer_that_comes_before_it_has_sent_its_body(
    key: str, size: int, status: int
) -> None:
    under_test = make_app(api_keys=("sesame",), limits=Limits(max_body_bytes=1000))
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with open_place(app=under_test.app) as place, httpx.AsyncClient(http1=False, http2=True) as client:
        for _ in range(3):
            url = f"http://127.0.0.1:{place.port}/v1/completions"
            answer = await client.post(url, content=b" " * size, headers=headers)
            assert (answer.http_version, answer.status_code) == ("HTTP/2", status)
            assert "error" in answer.json()


async def test_a_handler_that_fails_is_a_500_or_a_reset_and_the_connection_goes_on(caplog: Any) -> None:
    async with open_place() as place, open_http2(place.port) as client:
        assert (await client.until_ended(await client.ask("/fail")))[0] == 500
        number = await client.ask("/half")
        assert await client.until_ended(number) == (0, b"half")
        assert (await client.until(RstStreamFrame, number)).error_code == ErrorCodes.INTERNAL_ERROR
        assert await client.until_ended(await client.ask("/small")) == (200, b"small")
    assert [record.name for record in caplog.records] == ["trillm.http"] * 2


async def test_who_expects_to_be_told_to_go_on_is_told_when_its_body_is_wanted() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        number = await client.ask("/echo", ("expect", "100-continue"), method="POST", body=None)
        await client.until(HeadersFrame, number)
        assert client.headers(number) == {":status": "100"}
        await client.send(*client.body(number, b"hello"))
        assert await client.until_ended(number) == (200, b"hello")


@pytest.mark.parametrize(
    ("frame", "asks"),
    [
        (PingFrame(0, opaque_data=b"12345678"), False),
        (SettingsFrame(0, settings={SettingsFrame.MAX_FRAME_SIZE: 16384}), False),
        (PriorityFrame(1, stream_weight=1), False),
        (WindowUpdateFrame(0, window_increment=1), False),
        (DataFrame(1, data=b""), True),
        (DataFrame(1, data=b"a"), True),
    ],
    ids=["pings", "settings", "priorities", "windows", "empty data", "crumbs"],
)
async def test_a_flood_of_frames_that_ask_for_nothing_ends_the_connection(frame: Any, asks: bool) -> None:
    async with open_place() as place, open_http2(place.port, window=65535) as client:
        if asks:
            await client.ask("/echo", method="POST", body=None)
        await client.send(*[frame] * 100)
        assert await client.until_ended(await client.ask("/small")) == (200, b"small"), "a hundred are no flood"
        with suppress(trio.BrokenResourceError):
            await client.send(*[frame] * (2 * FRAMES[0]))
        await client.until_closed()
        assert client.goodbye() in (ErrorCodes.ENHANCE_YOUR_CALM, None)  # None: a reset has overtaken it
        await place.until_running(0)
        async with open_http2(place.port) as other:
            assert await other.until_ended(await other.ask("/small")) == (200, b"small")


async def test_rapid_resets_end_the_connection_and_start_few_handlers() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        frames = [
            frame
            for number in ODD[:2000]
            for frame in (client.request(number, "/wait"), RstStreamFrame(number, error_code=ErrorCodes.CANCEL))
        ]
        with suppress(trio.BrokenResourceError):
            await client.send(*frames)
        await client.until_closed()
        await place.until_running(0)
        assert place.num_begun <= RESETS[0] + 250, "of what came in one piece"


async def test_streams_that_the_client_has_us_reset_count_as_well() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        with suppress(trio.BrokenResourceError):
            for number in ODD[:2000]:  # a window that overflows is our reset, not the client's
                await client.send(
                    client.request(number, "/wait"), WindowUpdateFrame(number, window_increment=2**31 - 1)
                )
        await client.until_closed()
        await place.until_running(0)
        assert place.num_begun <= RESETS[0] + 250


async def test_one_connection_has_so_many_requests_at_once_and_no_more() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        settings = await client.until(SettingsFrame)
        assert settings.settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == MAX_STREAMS
        for _ in range(MAX_STREAMS):
            await client.ask("/wait")
        await place.until_running(MAX_STREAMS)
        with suppress(trio.BrokenResourceError):
            await client.ask("/wait")
        await client.until_closed()
        await place.until_running(0)
        assert place.num_begun == MAX_STREAMS


async def test_headers_that_are_too_many_are_a_431_and_many_more_end_the_connection() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        many = [(f"x-{number}", "a" * 1000) for number in range(15)]
        assert (await client.until_ended(await client.ask("/small", *many)))[0] == 200
        number = await client.ask("/small", *many, ("x-more", "b"), ("x-last", "a" * 1000))
        assert (await client.until_ended(number))[0] == 431
        assert await client.until_ended(await client.ask("/small")) == (200, b"small")
        block = client.request(99, "/small", *[(f"x-{number}", "a" * 1000) for number in range(100)])
        first, *others = [block.data[at : at + 16000] for at in range(0, len(block.data), 16000)]
        parts = [HeadersFrame(99, data=first, flags=["END_STREAM"])]
        parts += [ContinuationFrame(99, data=part) for part in others]
        parts[-1].flags.add("END_HEADERS")
        with suppress(trio.BrokenResourceError):
            await client.send(*parts)
        await client.until_closed()
        assert place.num_begun == 2


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/\xff".encode().decode("latin-1"), "GET", 400), ("x", "GET", 400), ("/", "CONNECT", 405)],
)
async def test_what_is_no_request_is_refused_and_the_connection_goes_on(path: str, method: str, status: int) -> None:
    async with open_place() as place, open_http2(place.port) as client:
        assert (await client.until_ended(await client.ask(path, method=method)))[0] == status
        assert await client.until_ended(await client.ask("/small")) == (200, b"small")
        assert place.num_begun == 1


async def test_an_idle_connection_is_closed_whatever_it_pings() -> None:
    async with open_place(keep_alive_timeout=0.3) as place, open_http2(place.port) as client:
        assert await client.until_ended(await client.ask("/small")) == (200, b"small")
        began = trio.current_time()
        while not client.is_closed:
            with suppress(trio.BrokenResourceError):
                await client.send(PingFrame(0, opaque_data=b"12345678"))
            await client.hear()
            await trio.sleep(0.01)
        assert 0.2 < trio.current_time() - began < 5


async def test_an_idle_connection_is_told_goodbye() -> None:
    async with open_place(keep_alive_timeout=0.1) as place, open_http2(place.port) as client:
        await client.until_closed()
        assert client.goodbye() == ErrorCodes.NO_ERROR


async def test_a_request_that_waits_longer_than_that_is_not_idle() -> None:
    async with open_place(keep_alive_timeout=0.2) as place, open_http2(place.port) as client:
        number = await client.ask("/wait")
        await trio.sleep(0.5)
        place.go.set()
        assert await client.until_ended(number) == (200, b"small")


async def test_a_server_that_stops_says_goodbye_when_the_last_request_has_ended() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        number = await client.ask("/wait")
        await place.until_running(1)
        place.stop.set()
        await wait_all_tasks_blocked()  # it has heard it
        late = await client.ask("/small")
        assert await client.until_ended(late) == (200, b"small"), "the application says who comes too late"
        assert client.goodbye() is None
        place.go.set()
        assert await client.until_ended(number) == (200, b"small")
        await client.until_closed()
        [goodbye] = client.of(GoAwayFrame)
        assert (goodbye.error_code, goodbye.last_stream_id) == (ErrorCodes.NO_ERROR, late)
        assert client.frames[-1] is goodbye


async def test_who_asks_on_and_on_does_not_keep_a_server_from_stopping() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        first = await client.ask("/wait")
        await place.until_running(1)
        place.stop.set()
        await wait_all_tasks_blocked()  # it has heard it
        second = await client.ask("/ignore")
        await place.until_running(2)
        await client.send(RstStreamFrame(first, error_code=ErrorCodes.CANCEL))
        await place.until_running(1)
        third = await client.ask("/small")
        assert (await client.until(RstStreamFrame, third)).error_code == ErrorCodes.REFUSED_STREAM
        assert client.goodbye() is None
        place.go.set()
        assert await client.until_ended(second) == (200, b"small")
        await client.until_closed()
        assert client.goodbye() == ErrorCodes.NO_ERROR


async def test_a_client_that_says_goodbye_still_gets_what_it_has_asked_for() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        number = await client.ask("/wait")
        await place.until_running(1)
        await client.send(GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.NO_ERROR))
        late = await client.ask("/small")
        assert (await client.until(RstStreamFrame, late)).error_code == ErrorCodes.REFUSED_STREAM
        place.go.set()
        assert await client.until_ended(number) == (200, b"small")


async def test_a_client_that_goes_with_an_error_is_gone() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        await client.ask("/wait")
        await place.until_running(1)
        await client.send(GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.INTERNAL_ERROR))
        await place.until_running(0)
        await client.until_closed()


async def test_an_idle_connection_is_closed_when_the_server_stops() -> None:
    async with open_place() as place, open_http2(place.port) as client:
        assert await client.until_ended(await client.ask("/small")) == (200, b"small")
        place.stop.set()
        await client.until_closed()
        assert client.goodbye() == ErrorCodes.NO_ERROR


async def test_nobody_changes_from_http_1_to_it_by_an_upgrade() -> None:
    async with open_place() as place, await trio.open_tcp_stream("127.0.0.1", place.port) as stream:
        await stream.send_all(
            b"GET /small HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
        )
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")


async def test_where_it_is_not_enabled_its_preface_is_no_request() -> None:
    before = H11Protocol._check_protocol
    with bounded_http2(BoundedSends(1), enabled=False):
        async with trio.open_nursery() as nursery:
            port = await serve_on_loopback(make_app().app, nursery)
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await Http2Client(stream).begin()
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 4")
            nursery.cancel_scope.cancel()
    assert H11Protocol._check_protocol is before


async def test_the_application_streams_over_it_and_a_reset_aborts_the_generation() -> None:
    under_test = make_app(api_keys=("sesame",))
    async with open_place(app=under_test.app) as place, open_http2(place.port) as client:
        body = json.dumps({"prompt": "Hi", "stream": True, "max_tokens": 3}).encode()
        number = await client.ask("/v1/completions", ("content-type", "application/json"), method="POST", body=None)
        assert (await client.until_ended(number))[0] == 401, "before the body has come"
        key = ("authorization", "Bearer sesame")
        ask = partial(client.ask, "/v1/completions", ("content-type", "application/json"), key, method="POST")
        status, data = await client.until_ended(await ask(body=body))
        assert status == 200
        assert data.endswith(b"data: [DONE]\n\n")
        under_test.engine.hold()
        number = await ask(body=body)
        while under_test.engine.num_requests == 0:
            await trio.sleep(0.001)
        await client.send(RstStreamFrame(number, error_code=ErrorCodes.CANCEL))
        while under_test.engine.num_requests:
            await trio.sleep(0.001)
        assert under_test.engine.num_aborted == 1
