"""A connection on which the next request has come already, when the server leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ConnectionState, Scope
from trio.testing import wait_all_tasks_blocked

from app.last_turn import last_turns

REQUEST = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


@pytest.fixture(autouse=True)
def mended() -> Iterator[None]:
    with last_turns():
        yield


class Answers:
    """Each waits until it may."""

    def __init__(self) -> None:
        self.may = trio.Event()
        self.sent: list[Event] = []

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await self.may.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def take(self, event: Event) -> None:
        self.sent.append(event)

    @property
    def num_answers(self) -> int:
        return sum(isinstance(event, RawData) and b" 204 " in event.data for event in self.sent)


async def handled(answers: Answers, data: bytes, *, leaves: bool) -> None:
    context = WorkerContext(None)
    async with TaskGroup() as group:
        app = ASGIWrapper(answers)  # type: ignore[arg-type]
        state = ConnectionState({})
        protocol = H11Protocol(app, Config(), context, group, state, False, None, None, answers.take)
        group.spawn(protocol.handle, RawData(data))
        await wait_all_tasks_blocked()
        if leaves:
            await context.terminated.set()
        answers.may.set()
        with trio.fail_after(5):
            while group._nursery is not None and group._nursery.child_tasks:
                await trio.sleep(0.1)


async def test_a_request_whose_turn_does_not_come_holds_nothing_up(autojump_clock):
    answers = Answers()
    await handled(answers, REQUEST + REQUEST, leaves=True)

    assert answers.num_answers == 1
    assert any(isinstance(event, Closed) for event in answers.sent)


async def test_otherwise_each_request_has_its_turn(autojump_clock):
    answers = Answers()
    await handled(answers, REQUEST + REQUEST, leaves=False)

    assert answers.num_answers == 2
    assert not any(isinstance(event, Closed) for event in answers.sent)
