"""HTTP to servers of tools, under the MCP package's transports: answers have limits, and failures are told at once.

Those transports read a JSON answer whole, however large, come back to a stream of events as often as the server says,
and fail altogether with one POST that fails, or wait for its answer for ever.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from functools import cache
from typing import final

import httpx2
import msgspec
import trio

from app.tools.address import ToolAddress
from app.tools.bounded_body import BodyLimits, EventStreamBody, read_whole
from app.tools.mcp_tool import MAX_LISTING_BYTES
from app.tools.pace import Pace
from app.tools.request_headers import Headers
from app.tools.small_events import SmallEvents

MAX_MESSAGE_BYTES = 16 * 2**20
"""Of a call's answer, or of one event of a stream."""
OF_CALLS = BodyLimits(MAX_MESSAGE_BYTES, 2**18)
"""Results are mostly texts, and pictures in base64."""
OF_OTHERS = BodyLimits(2 * MAX_LISTING_BYTES, 2**17)
"""Lists, as servers write them: with spaces, and what nobody here reads."""
CALL = re.compile(rb'"method":\s*"tools/call"')
PACKED = "the answer is compressed, which was not asked for: its size would have no limit"
NOT_SENT, CUT_OFF = 1_424_001, 1_424_002
"""Codes of errors that we answer ourselves, outside those of JSON-RPC: there was no connection to send a request on,
and there was one, but no answer. The request alone fails, and nobody else's on the session."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 3600.0
"""Without a byte on a stream of events. Calls have their own, shorter limits."""
STREAMS_AT_ONCE, STREAMS_PER_SECOND = 8, 1.0
"""How often streams of events are opened again."""


@final
class BoundedTransport(httpx2.AsyncHTTPTransport):
    """`on_failure` is called with what went wrong: a status that is an error, or no answer."""

    def __init__(
        self, address: ToolAddress, on_failure: Callable[[str, str], None], *, posts_are_answered: bool
    ) -> None:
        """`on_failure(method, reason)`; the reason has no header and no body. `posts_are_answered`: in their own
        answers, as over Streamable HTTP."""
        super().__init__(verify=certificates())
        self._address = address
        self._own_url = httpx2.URL(address.url)
        self._on_failure = on_failure
        self._posts_are_answered = posts_are_answered
        self._streams = Pace(STREAMS_AT_ONCE, STREAMS_PER_SECOND)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            await trio.sleep(self._streams.wait_for(1, trio.current_time()))
        try:
            self._check_allowed(request)
            return await self._bounded(request, await super().handle_async_request(request))
        except httpx2.HTTPError as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._on_failure(request.method, reason)
            if request.method != "POST" or not self._posts_are_answered:
                raise
            is_unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return _failed(request, NOT_SENT if is_unsent else CUT_OFF, reason)

    def _check_allowed(self, request: httpx2.Request) -> None:
        """The MCP package follows redirects and events of endpoints on its own."""
        url = str(request.url)
        if request.url != self._own_url and not self._address.may_ask(url):
            raise httpx2.LocalProtocolError(
                f"the server leads to {ToolAddress('http', url)}, which this server may not call "
                "(--allowed-mcp-servers)"
            )

    async def _bounded(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.ReadError(PACKED)
        if response.status_code >= 300:
            self._on_failure(request.method, f"HTTP {response.status_code} {response.reason_phrase}".strip())
        is_post = request.method == "POST"
        limits = OF_CALLS if not is_post or CALL.search(await request.aread()) else OF_OTHERS
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if is_stream and response.status_code < 300 and (self._posts_are_answered or not is_post):
            events = response.stream if self._posts_are_answered else SmallEvents(response.stream)
            response.stream = EventStreamBody(events, limits, is_endless=limits is OF_CALLS)
            return response
        try:
            content = await read_whole(aiter(response.stream), limits)
        finally:
            await response.aclose()
        return httpx2.Response(response.status_code, headers=response.headers, content=content, request=request)


@cache
def certificates() -> ssl.SSLContext:
    """Whom this machine trusts. Read once: it takes a tenth of a second and most of a megabyte, and each session has a
    transport of its own."""
    return httpx2.create_ssl_context()


def _failed(request: httpx2.Request, code: int, reason: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": reason}}
    headers = {"content-type": "application/json"}
    return httpx2.Response(503, headers=headers, content=msgspec.json.encode(error), request=request)


def http_client(
    address: ToolAddress, headers: Headers, on_failure: Callable[[str, str], None], *, posts_are_answered: bool
) -> httpx2.AsyncClient:
    """Follows no redirects by itself, and takes nothing from netrc or proxies of the environment."""
    return httpx2.AsyncClient(
        headers={**dict(headers), "accept-encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS),
        transport=BoundedTransport(address, on_failure, posts_are_answered=posts_are_answered),
        follow_redirects=False,
        trust_env=False,
    )
