"""An answer that does not wait for the body ends the connection, and says so; any other leaves it open."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.limits import Limits
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.loopback import serve_on_loopback


async def connection_header(under_test: AppUnderTest, method: str, path: str, *, whole: bool = False, **headers: str):
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    version = headers.pop("version", "1.1")
    exchange = Exchange(http_scope(method, path, lines, http_version=version), b'{"prompt": "Hi"}', more_body=not whole)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, under_test.app)
        await wait_all_tasks_blocked()
        assert exchange.sent
        nursery.cancel_scope.cancel()
    return exchange.status, dict(exchange.sent[0]["headers"]).get(b"connection")


JSON = {"content_type": "application/json", "content_length": "101"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/v1/completions", JSON, 413),
        ("POST", "/v1/completions", {"content_type": "text/plain", "content_length": "5"}, 415),
        ("POST", "/nothing", JSON, 404),
        ("POST", "/v1/models", JSON, 405),
        ("POST", "/v1/models", {"transfer_encoding": "chunked"}, 405),
        ("POST", "/v1/completions", {**JSON, "host": "evil.example"}, 403),
    ],
)
async def test_an_answer_before_the_body_announces_the_end(method: str, path: str, headers, status: int) -> None:
    under_test = make_app(limits=Limits(max_body_bytes=100))
    assert await connection_header(under_test, method, path, **headers) == (status, b"close")
    assert await connection_header(under_test, method, path, version="2", **headers) == (status, None)


async def test_a_refused_key_announces_it_too() -> None:
    assert await connection_header(make_app(api_keys=("k",)), "POST", "/v1/completions", **JSON) == (401, b"close")


async def test_other_answers_leave_the_connection_open() -> None:
    under_test = make_app()
    assert await connection_header(under_test, "GET", "/v1/models") == (200, None)
    assert await connection_header(under_test, "GET", "/nothing") == (404, None)
    assert await connection_header(under_test, "POST", "/v1/models", content_length="0") == (405, None)
    sent = {"content_type": "application/json", "content_length": "16"}
    assert await connection_header(under_test, "POST", "/v1/completions", whole=True, **sent) == (200, None)


@pytest.mark.process
async def test_over_a_socket_what_is_announced_is_done() -> None:
    under_test = make_app()
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(under_test.app, nursery)
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            await client.send_all(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
            answer = b"".join([piece async for piece in client])
        nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"connection: close" in answer.lower()
