"""Servers behind the proxy that do as a test says, over streams in memory: bytes move when the other side reads."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import httpcore2
import trio
from quart_trio import QuartTrio
from trio.testing import lockstep_stream_pair

from app.drain import Drain
from app.proxy.counts import ProxyCounts
from app.proxy.factory import create_proxy_app, make_forwarding
from app.proxy.forwarding import Forwarding
from app.proxy.settings import ProxySettings
from app.proxy.upstream_client import UpstreamClient
from app.tracing.start import Tracing
from tests.helpers.app_under_test import Reply
from tests.helpers.asgi import Exchange, http_scope

TRANSFER = {"do_remote_prefill": True, "ticket": "t", "remote_block_ids": [[1, 2], [3]]}
EVENTS = b'data: {"text": "a"}\n\ndata: {"text": "b"}\n\ndata: [DONE]\n\n'


@attrs.define
class Received:
    """A request, as a fake server had it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@attrs.define
class Talk:
    """One request's connection, for a script to answer on."""

    received: Received
    stream: trio.abc.Stream
    connection: h11.Connection

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [(name.replace("_", "-"), value) for name, value in headers.items()]
        await self._send(h11.Response(status_code=status, headers=lines))

    async def data(self, data: bytes) -> None:
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def whole(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.head(status, content_type="application/json", content_length=str(len(data)), **headers)
        await self.data(data)
        await self.end()

    async def events(self, data: bytes = EVENTS) -> None:
        await self.head(content_type="text/event-stream; charset=utf-8", cache_control="no-cache")
        await self.data(data)
        await self.end()

    async def _send(self, event: Any) -> None:
        await self.stream.send_all(self.connection.send(event))


class BreakOffError(Exception):
    """Raised by a script: the connection is closed without another word."""


Script = Callable[[Talk], Awaitable[None]]


async def computes_prompts(talk: Talk) -> None:
    await talk.whole({"choices": [], "kv_transfer_params": TRANSFER})


async def answers(talk: Talk) -> None:
    """As a stream where that is asked for."""
    if talk.received.body and talk.received.json.get("stream"):
        await talk.events()
    else:
        await talk.whole({"choices": [{"text": "ab"}]}, x_request_id="upstream's")


async def breaks_off(talk: Talk) -> None:
    raise BreakOffError


async def says_nothing(talk: Talk) -> None:
    await trio.sleep_forever()


def refuses(status: int, text: str = "no") -> Script:
    async def refuse(talk: Talk) -> None:
        await talk.whole({"error": {"message": text}}, status, retry_after="7")

    return refuse


@attrs.define(eq=False)
class FakeUpstream:
    script: Script
    is_reachable: bool = True
    had: list[Received] = attrs.field(factory=list)
    num_connections: int = 0
    num_left: int = 0
    """Connections that the proxy has closed before the answer was over."""

    async def run(self, stream: trio.abc.Stream) -> None:
        self.num_connections += 1
        connection = h11.Connection(h11.SERVER)
        async with stream:
            while (received := await self._receive(stream, connection)) is not None:
                self.had.append(received)
                if not await self._answer(Talk(received, stream, connection)):
                    return
                connection.start_next_cycle()

    async def _receive(self, stream: trio.abc.Stream, connection: h11.Connection) -> Received | None:
        head, body = None, b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                return None  # closed
        headers = [(name.decode(), value.decode()) for name, value in head.headers]
        return Received(head.method.decode(), head.target.decode(), headers, body)

    async def _answer(self, talk: Talk) -> bool:
        """Whether it was answered to the end."""
        done = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await talk.stream.receive_some()  # nothing more is sent: it has been closed
                self.num_left += 1
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                await self.script(talk)
                done = talk.connection.our_state is h11.DONE
            except (BreakOffError, trio.BrokenResourceError):
                pass
            nursery.cancel_scope.cancel()
        return done


class MemoryStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            with trio.fail_after(timeout):
                return bytes(await self._stream.receive_some(max_bytes))
        except trio.TooSlowError as error:
            raise httpcore2.ReadTimeout from error
        except trio.BrokenResourceError as error:
            raise httpcore2.ReadError from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            with trio.fail_after(timeout):
                await self._stream.send_all(buffer)
        except trio.BrokenResourceError as error:
            raise httpcore2.WriteError from error

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    async def start_tls(self, ssl_context: ssl.SSLContext, server_hostname=None, timeout=None) -> Any:
        raise httpcore2.ConnectError("no TLS is spoken here")

    def get_extra_info(self, info: str) -> Any:
        return False if info == "is_readable" else None


@attrs.define
class MemoryNetwork(httpcore2.AsyncNetworkBackend):
    """By host name."""

    upstreams: dict[str, FakeUpstream]
    nursery: trio.Nursery

    async def connect_tcp(self, host: str, port: int, timeout=None, local_address=None, socket_options=None) -> Any:
        await trio.lowlevel.checkpoint()
        upstream = self.upstreams[host]
        if not upstream.is_reachable:
            raise httpcore2.ConnectError("Connection refused")
        ours, theirs = lockstep_stream_pair()
        self.nursery.start_soon(upstream.run, theirs)
        return MemoryStream(ours)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


@attrs.define
class ProxyUnderTest:
    app: QuartTrio
    forwarding: Forwarding
    draining: Drain
    ending: Drain
    upstreams: dict[str, FakeUpstream]
    """p0, p1, … and d0, d1, …"""

    def exchange(
        self, body: Any = None, path: str = "/v1/completions", method: str = "POST", query: bytes = b"", **headers: str
    ) -> Exchange:
        sent = {"content_type": "application/json", **headers}
        lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()]
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return Exchange(http_scope(method, path, lines, query_string=query), data)

    async def ask(self, body: Any = None, path: str = "/v1/completions", method: str = "POST", **headers: str) -> Reply:
        exchange = self.exchange(body, path, method, **headers)
        await exchange.run(self.app)
        return Reply(exchange)

    def requests(self, name: str) -> list[Received]:
        """Those that were for more than its health."""
        return [one for one in self.upstreams[name].had if one.target != "/health"]

    async def count(self, sample: str) -> float:
        """A line of /metrics, without its value."""
        text = (await self.ask(path="/metrics", method="GET")).text
        found = [line for line in text.splitlines() if line.startswith(sample + " ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    @property
    def num_in_flight(self) -> int:
        return sum(one.num_in_flight for role in (self.forwarding.prefill, self.forwarding.decode) for one in role)


@asynccontextmanager
async def open_proxy_under_test(
    prefill: Iterable[Script] = (computes_prompts,),
    decode: Iterable[Script] = (answers,),
    tracing: Tracing | None = None,
    **settings: Any,
) -> AsyncIterator[ProxyUnderTest]:
    """Nothing may be left at any server afterwards."""
    upstreams = {f"p{n}": FakeUpstream(script) for n, script in enumerate(prefill)}
    upstreams |= {f"d{n}": FakeUpstream(script) for n, script in enumerate(decode)}
    urls = {kind: tuple(f"http://{name}" for name in upstreams if name[0] == kind) for kind in "pd"}
    chosen = ProxySettings(prefill=urls["p"], decode=urls["d"], **settings)
    draining, ending = Drain(), Drain()
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(upstreams, nursery)
        counts = ProxyCounts()
        client = UpstreamClient(counts, ending, silent_seconds=chosen.upstream_timeout, backend=network)
        async with client:
            forwarding = make_forwarding(chosen, client, counts)
            app = create_proxy_app(chosen, forwarding, draining, tracing)
            under_test = ProxyUnderTest(app, forwarding, draining, ending, upstreams)
            yield under_test
            assert under_test.num_in_flight == 0
        nursery.cancel_scope.cancel()
