from __future__ import annotations

import httpx2
import pytest

from app.tools.bounded_body import (
    STREAM_BURST_BYTES,
    STREAM_BYTES_PER_SECOND,
    BodyLimits,
    EventStreamBody,
    count_values,
    read_whole,
)
from app.tools.pace import Pace

LIMITS = BodyLimits(max_bytes=10, max_values=4)


class Parts(httpx2.AsyncByteStream):
    def __init__(self, *parts: bytes) -> None:
        self.parts = iter(parts)

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        for part in self.parts:
            return part
        raise StopAsyncIteration

    async def aclose(self) -> None:
        pass


async def read(*parts: bytes, is_endless: bool = True, limits: BodyLimits = LIMITS) -> bytes:
    body = EventStreamBody(Parts(*parts), limits, is_endless=is_endless)
    return b"".join([part async for part in body])


def test_values_are_objects_lists_and_what_stands_between_them():
    assert count_values(b'{"a": [1, 2], "b": {}}') == 5


async def test_a_body_is_read_whole_up_to_its_bounds():
    assert await read_whole(aiter(Parts(b"12345", b"67890")), LIMITS) == b"1234567890"
    with pytest.raises(httpx2.ReadError, match="larger than 10 bytes"):
        await read_whole(aiter(Parts(b"12345", b"678901")), LIMITS)
    with pytest.raises(httpx2.ReadError, match="more than 4 objects"):
        await read_whole(aiter(Parts(b"[[[", b"[[")), LIMITS)


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("split", [0, 1, 2])
async def test_the_bounds_are_those_of_one_event(blank, split, autojump_clock):
    parts = [b"[[[12345" + blank[:split], blank[split:] + b"[[[12345" + blank]

    assert await read(*parts) == b"".join(parts)
    with pytest.raises(httpx2.ReadError):
        await read(*parts, is_endless=False)


@pytest.mark.parametrize("parts", [(b"data: 1", b"\ndata: 2"), (b"[[[[\r", b"\n["), (b"[[[[\n", b"[\n")])
async def test_the_end_of_a_line_is_no_end_of_an_event(parts, autojump_clock):
    with pytest.raises(httpx2.ReadError):
        await read(*parts)


async def test_streams_are_read_at_a_pace(autojump_clock):
    began = autojump_clock.current_time()
    part = b":" + b"x" * (STREAM_BYTES_PER_SECOND - 3) + b"\n\n"
    await read(*[part] * (STREAM_BURST_BYTES // STREAM_BYTES_PER_SECOND + 3), limits=BodyLimits(2**30, 1))

    assert autojump_clock.current_time() - began == pytest.approx(3, abs=0.1)


def test_a_pace_lets_a_burst_through_and_then_so_much_a_second():
    pace = Pace(burst=2, per_second=4)

    assert [pace.wait_for(1, now=10.0) for _ in range(4)] == [0, 0, 0.25, 0.5]
    assert pace.wait_for(1, now=10.75) == 0
    assert pace.wait_for(1, now=10.75) == 0.25
    assert [pace.wait_for(1, now=100.0) for _ in range(3)] == [0, 0, 0.25]
