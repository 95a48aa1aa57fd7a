"""HTTP to servers of tools, under the MCP package's transports: answers have a limit, and failures are told at once.

Those transports read a JSON answer whole, however large, and swallow a POST that fails: whoever waits for its answer
would wait for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import final

import httpx2

from app.tools.request_headers import Headers

MAX_MESSAGE_BYTES = 16 * 2**20
"""In one answer in JSON, or one event of a stream of them."""
PACKED = "the answer is compressed, which was not asked for: its size would have no limit"
CONNECT_SECONDS = 10.0
READ_SECONDS = 3600.0
"""Without a byte on a stream of events. Calls have their own, shorter limits."""


@final
class BoundedBody(httpx2.AsyncByteStream):
    """A body that raises httpx2.ReadError once it is larger than MAX_MESSAGE_BYTES."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._body:
            size += len(part)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()


@final
class BoundedTransport(httpx2.AsyncHTTPTransport):
    """`on_failure` is called with what went wrong: a status that is an error, or no answer."""

    def __init__(self, on_failure: Callable[[str, str], None]) -> None:
        """`on_failure(method, reason)`; the reason has no header and no body."""
        super().__init__()
        self._on_failure = on_failure

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await super().handle_async_request(request)
        except httpx2.HTTPError as error:
            self._on_failure(request.method, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            raise
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            self._on_failure(request.method, PACKED)
            raise httpx2.ReadError(PACKED)
        if response.status_code >= 300:
            self._on_failure(request.method, f"HTTP {response.status_code} {response.reason_phrase}".strip())
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if not is_stream and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = BoundedBody(response.stream)
        return response


def http_client(headers: Headers, on_failure: Callable[[str, str], None]) -> httpx2.AsyncClient:
    """Follows no redirects by itself, and takes nothing from netrc or proxies of the environment."""
    return httpx2.AsyncClient(
        headers={**dict(headers), "accept-encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS),
        transport=BoundedTransport(on_failure),
        follow_redirects=False,
        trust_env=False,
    )
