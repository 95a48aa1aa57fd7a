"""One connection to a server of tools, as the MCP package's client wants it, whatever carries it.

Used by app/tools/session.py. `on_end` is called once nothing more will be heard: the package itself tells nobody that
a connection has ended while nothing was asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from app.tools.address import ToolAddress
from app.tools.bounded_http import CONNECT_SECONDS, MAX_MESSAGE_BYTES, READ_SECONDS, http_client
from app.tools.command import open_command
from app.tools.request_headers import Headers
from app.tools.watched_streams import STUCK, HeardStream, SaidStream

Connect = Callable[
    [ToolAddress, Headers, Callable[[str], None], Callable[[], None]], AbstractAsyncContextManager[TransportStreams]
]
"""(address, headers, on_failure(reason), on_end()) to the streams; tests bring their own."""


@asynccontextmanager
async def open_transport(
    address: ToolAddress, headers: Headers, on_failure: Callable[[str], None], on_end: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """Raises what the package's transports raise, often in a group. `on_failure`: why the last message could not be
    handed over; over SSE nothing can be asked after that, and `on_end` is called as well."""

    def failed(method: str, reason: str) -> None:
        if method != "POST" and address.transport == "http":
            return  # a server need not have a stream of its own accord, nor an end of sessions
        on_failure(reason)
        if address.transport == "sse" and not reason.startswith("HTTP 3"):  # redirects may be followed
            on_end()

    def stuck() -> None:
        on_failure(STUCK)
        on_end()

    async with _transport(address, headers, failed) as (heard, said):
        yield HeardStream(heard, on_end), SaidStream(said, stuck)


@asynccontextmanager
async def _transport(
    address: ToolAddress, headers: Headers, failed: Callable[[str, str], None]
) -> AsyncGenerator[TransportStreams]:
    match address.transport:
        case "stdio":
            async with open_command(address.command, address.name) as streams:
                yield streams
        case "sse":

            def make_client(
                headers: dict[str, str] | None = None,
                timeout: httpx2.Timeout | None = None,
                auth: httpx2.Auth | None = None,
            ) -> httpx2.AsyncClient:
                return http_client(address, tuple((headers or {}).items()), failed, posts_are_answered=False)

            client = sse_client(address.url, dict(headers), CONNECT_SECONDS, READ_SECONDS, make_client)
            async with client as streams:
                yield streams
        case "http":
            async with (
                http_client(address, headers, failed, posts_are_answered=True) as http,
                streamable_http_client(address.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
            ):
                yield streams
