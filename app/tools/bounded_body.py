"""Bodies of answers of tool servers, bounded before anything reads them. Used by app/tools/bounded_http.py.

Bytes alone are no bound: sixteen megabytes of tools, or of empty objects, keep the one thread of this server busy for
seconds and become half a gigabyte of Python's objects. So the values in a message are counted, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import final

import httpx2
import trio
from attrs import frozen

from app.tools.pace import Pace

BLANK_LINES = (b"\n\n", b"\r\r", b"\n\r")
"""Each end of an event has one of these in it, whatever its lines end with."""
STREAM_BURST_BYTES, STREAM_BYTES_PER_SECOND = 32 * 2**20, 2 * 2**20
"""Of a stream of events: also comments cost time to read."""


@frozen
class BodyLimits:
    max_bytes: int
    max_values: int
    """Objects, lists and commas, also those in texts."""

    def check(self, num_bytes: int, num_values: int) -> None:
        """Raises httpx2.ReadError."""
        if num_bytes > self.max_bytes:
            raise httpx2.ReadError(f"the answer is larger than {self.max_bytes} bytes")
        if num_values > self.max_values:
            raise httpx2.ReadError(f"the answer has more than {self.max_values} objects, lists and commas")


async def read_whole(body: AsyncIterator[bytes], limits: BodyLimits) -> bytes:
    """Raises httpx2.ReadError for one that is too large."""
    parts: list[bytes] = []
    num_bytes = num_values = 0
    async for part in body:
        num_bytes += len(part)
        num_values += count_values(part)
        limits.check(num_bytes, num_values)
        parts.append(part)
    return b"".join(parts)


def count_values(part: bytes) -> int:
    return part.count(b"{") + part.count(b"[") + part.count(b",")


@final
class EventStreamBody(httpx2.AsyncByteStream):
    """A stream of events, which is read at a pace, and raises httpx2.ReadError for too large an event. Without
    `is_endless` the limits are those of all events together."""

    def __init__(self, body: httpx2.AsyncByteStream, limits: BodyLimits, *, is_endless: bool) -> None:
        self._body = body
        self._limits = limits
        self._is_endless = is_endless
        self._pace = Pace(STREAM_BURST_BYTES, STREAM_BYTES_PER_SECOND)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = num_values = 0
        last = b""
        async for part in self._body:
            joined = last + part
            last = joined[-1:]
            end = max(map(joined.rfind, BLANK_LINES)) if self._is_endless else -1
            if end >= 0:
                num_bytes = num_values = 0
            num_bytes += len(part) if end < 0 else len(joined) - end
            num_values += count_values(part if end < 0 else joined[end:])
            self._limits.check(num_bytes, num_values)
            await trio.sleep(self._pace.wait_for(len(part), trio.current_time()))
            yield part

    async def aclose(self) -> None:
        await self._body.aclose()
