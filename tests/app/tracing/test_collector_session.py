"""Whatever a collector answers, it costs neither memory nor the next batch, and no redirection is taken for success."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from app.tracing.otel import OtelSource, OtlpSender
from app.tracing.request_trace import Outcome

pytestmark = pytest.mark.process

Reply = Callable[[trio.SocketStream], Awaitable[None]]


async def read_request(stream: trio.SocketStream) -> bool:
    """Whether there was one."""
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and len(body) >= int(length[1]):
            return True
        if not (more := await stream.receive_some()):
            return False
        received += more


@asynccontextmanager
async def open_sender(
    reply: Reply,
) -> AsyncIterator[tuple[Callable[[], Awaitable[str | None]], list[trio.SocketStream]]]:
    """What sends one span to who answers so, and the connections that were made."""
    streams: list[trio.SocketStream] = []
    spans: list[ReadableSpan] = []
    source = OtelSource(Resource({}), spans.append, "1")
    source.end(source.begin(None, {}), Outcome(source.begin(None, {}).began, {}))

    async def serve(stream: trio.SocketStream) -> None:
        streams.append(stream)
        with suppress(trio.BrokenResourceError):
            while await read_request(stream):
                await reply(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        sender = OtlpSender(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/v1/traces")

        async def send() -> str | None:
            with trio.fail_after(10):
                return await trio.to_thread.run_sync(sender.send, spans)

        yield send, streams
        sender.close()
        nursery.cancel_scope.cancel()


async def test_small_answers_keep_the_connection() -> None:
    async def reply(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with open_sender(reply) as (send, streams):
        assert [await send() for _ in range(3)] == [None] * 3
        assert len(streams) == 1


async def test_a_long_answer_is_not_read() -> None:
    num_sent = 0

    async def reply(stream: trio.SocketStream) -> None:
        nonlocal num_sent
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            await stream.send_all(bytes(65536))
            num_sent += 65536

    async with open_sender(reply) as (send, streams):
        assert [await send() for _ in range(2)] == [None] * 2
        assert len(streams) == 2
    assert num_sent < 50_000_000


async def test_a_redirection_is_told_and_not_followed() -> None:
    async def reply(stream: trio.SocketStream) -> None:
        await stream.send_all(
            b"HTTP/1.1 301 Moved\r\nLocation: https://me:secret@there/v1/traces\r\nContent-Length: 0\r\n\r\n"
        )

    async with open_sender(reply) as (send, _):
        assert await send() == "HTTP 301 names https://there/v1/traces as where they should be sent"


async def test_an_answer_that_comes_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.3")

    async def reply(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n")
        while True:
            await stream.send_all(b"a: b\r\n")
            await trio.sleep(0.1)

    async with open_sender(reply) as (send, _):
        assert await send() == "no answer in time"
