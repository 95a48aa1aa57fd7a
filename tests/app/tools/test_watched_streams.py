from __future__ import annotations

import anyio
import pytest
import trio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from app.tools.watched_streams import (
    SHORTEST_WAIT_SECONDS,
    STUCK_SECONDS,
    UNASKED_AT_ONCE,
    UNASKED_PER_SECOND,
    HeardStream,
    SaidStream,
)

NOTICE = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/progress"))
ANSWER = SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result={}))


async def seconds_for(message: SessionMessage, count: int) -> float:
    ended = []
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](count)
    for _ in range(count):
        send.send_nowait(message)
    send.close()
    began = trio.current_time()
    async with HeardStream(receive, lambda: ended.append(True)) as heard:
        assert [each async for each in heard] == [message] * count
    assert ended == [True]
    return trio.current_time() - began


async def test_what_nobody_asked_for_is_heard_at_a_pace_and_answers_at_once(autojump_clock):
    count = UNASKED_AT_ONCE + 5 * UNASKED_PER_SECOND

    assert await seconds_for(NOTICE, count) == pytest.approx(5)
    assert await seconds_for(ANSWER, count) == 0


class Said:
    """Where nothing is taken but what the test takes."""

    def __init__(self) -> None:
        self.num_stuck = 0
        send, self.taken = anyio.create_memory_object_stream[SessionMessage](0)
        self.stream = SaidStream(send, self.stuck)

    def stuck(self) -> None:
        self.num_stuck += 1

    async def close(self) -> None:
        await self.stream.aclose()
        await self.taken.aclose()


async def test_a_server_that_takes_nothing_is_found_out_by_whoever_asks_last(autojump_clock):
    said = Said()
    for _ in range(3):  # each is in less of a hurry than the connection is
        with trio.move_on_after(STUCK_SECONDS / 3):
            await said.stream.send(NOTICE)
    assert said.num_stuck == 0

    began = trio.current_time()
    with pytest.raises(anyio.BrokenResourceError):
        await said.stream.send(NOTICE)

    assert said.num_stuck == 1
    assert trio.current_time() - began == pytest.approx(SHORTEST_WAIT_SECONDS)
    await said.close()


async def test_a_server_that_takes_messages_slowly_is_not_stuck(autojump_clock):
    said = Said()
    async with trio.open_nursery() as saying:
        for _ in range(5):
            saying.start_soon(said.stream.send, NOTICE)
        for _ in range(5):
            await trio.sleep(STUCK_SECONDS * 0.8)
            await said.taken.receive()

    assert said.num_stuck == 0
    await said.close()
