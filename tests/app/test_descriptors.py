"""File descriptors: raised as far as the system allows, and some kept back from connections."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypercorn.config import Config
from hypercorn.events import Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from app.descriptors import MOST, RESERVE, ConnectionLimit


@pytest.mark.parametrize(("soft", "hard", "expected"), [(64, 128, 128), (128, 128, 128), (64, MOST * 4, MOST)])
def test_the_soft_limit_is_raised_to_the_hard_one_or_to_what_is_enough(soft: int, hard: int, expected: int) -> None:
    if hard > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        pytest.skip("this process may not have so many")
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from app.descriptors import raise_descriptor_limit\n"
        "print(raise_descriptor_limit(), raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == f"{expected} {expected} ({expected}, {hard})"


async def test_connections_leave_a_reserve_and_one_line_a_second_tells(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    limit = ConnectionLimit(1000)
    assert not limit.is_too_many(999 - RESERVE)
    assert caplog.records == []
    for _ in range(10):
        assert limit.is_too_many(1000 - RESERVE)
    assert len(caplog.records) == 1
    await trio.sleep(1)
    assert limit.is_too_many(1000 - RESERVE)
    assert len(caplog.records) == 2


async def test_a_small_limit_keeps_a_quarter_back() -> None:
    limit = ConnectionLimit(64)
    assert not limit.is_too_many(47)
    assert limit.is_too_many(48)


async def test_a_connection_whose_client_left_does_not_wait_for_another_request_when_its_answer_ends_just_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = trio.socket.socketpair()
    server: TCPServer

    async def answers_late(scope: object, receive: Callable[[], Awaitable[dict[str, object]]], *_: object) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await trio.sleep(1)
        await server.protocol_send(Updated(idle=True))

    with ConnectionLimit(1000).installed():
        server = TCPServer(answers_late, Config(), WorkerContext(None), {}, trio.SocketStream(ours))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await theirs.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
            theirs.close()
    assert trio.current_time() < 2
