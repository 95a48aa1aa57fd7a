"""A client that goes away leaves nothing running, at whatever moment it goes."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers.app_under_test import make_app
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.loopback import serve_on_loopback


def ask(stream: bool, path: str = "/v1/completions") -> Exchange:
    body = {"prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}], "stream": stream, "n": 2}
    return Exchange(http_scope("POST", path, [(b"content-type", b"application/json")]), json.dumps(body).encode())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("deltas", [0, 1, 3])
async def test_who_leaves_while_waiting_leaves_nothing_running(path: str, stream: bool, deltas: int) -> None:
    under_test = make_app()
    under_test.engine.hold()
    exchange = ask(stream, path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, under_test.app)
        await wait_all_tasks_blocked()
        under_test.engine.let(deltas)
        await wait_all_tasks_blocked()
        assert under_test.engine.num_requests == 2

        exchange.disconnected.set()
        await wait_all_tasks_blocked()

        assert under_test.engine.num_requests == 0
        assert under_test.engine.num_aborted == 2
    assert 'finished_reason="abort",model_name="owner/dummy"} 2.0' in under_test.services.metrics.render()[0].decode()


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_while_the_headers_go_out_leaves_nothing_running(stream: bool) -> None:
    under_test = make_app()
    exchange = ask(stream)
    exchange.blocked = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, under_test.app)
        await wait_all_tasks_blocked()
        exchange.disconnected.set()
        await wait_all_tasks_blocked()
        assert under_test.engine.num_requests == 0
        assert under_test.engine.num_left == 1


def request_bytes(stream: bool, version: str = "1.1", header: str = "X-Other: x", **fields: Any) -> bytes:
    body = json.dumps({"prompt": "Hi", "stream": stream, **fields}).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n{header}\r\n"
    head += f"Content-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


@pytest.mark.process
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
async def test_over_a_socket_a_close_and_a_reset_end_the_generation(stream: bool, reset: bool) -> None:
    under_test = make_app()
    under_test.engine.hold()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            port = await serve_on_loopback(under_test.app, nursery)
            client = await trio.open_tcp_stream("127.0.0.1", port)
            await client.send_all(request_bytes(stream))
            if stream:
                assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
            while under_test.engine.num_requests == 0:
                await trio.sleep(0.001)
            if reset:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await client.aclose()
            while under_test.engine.num_requests:
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    assert under_test.engine.num_aborted == 1


@pytest.mark.process
async def test_over_a_socket_a_stream_and_an_answer_share_a_connection() -> None:
    under_test = make_app()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            port = await serve_on_loopback(under_test.app, nursery)
            client = await trio.open_tcp_stream("127.0.0.1", port)
            received = b""
            await client.send_all(request_bytes(True, max_tokens=3))
            while not received.endswith(b"0\r\n\r\n"):
                received += await client.receive_some()
            assert received.count(b"data: [DONE]") == 1
            await client.send_all(request_bytes(False, max_tokens=3))
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
            await client.aclose()
            nursery.cancel_scope.cancel()
    assert under_test.engine.num_aborted == 0


@pytest.mark.process
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("version", "header"), [("1.1", "Connection: close"), ("1.0", "X-Other: x")])
async def test_over_a_socket_a_connection_that_is_to_be_closed_is_closed(
    stream: bool, version: str, header: str
) -> None:
    under_test = make_app()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            port = await serve_on_loopback(under_test.app, nursery)
            client = await trio.open_tcp_stream("127.0.0.1", port)
            await client.send_all(request_bytes(stream, version, header, max_tokens=3))
            received = b"".join([piece async for piece in client])
            await client.aclose()
            nursery.cancel_scope.cancel()
    assert b" Over" in received
    assert under_test.engine.num_aborted == 0
