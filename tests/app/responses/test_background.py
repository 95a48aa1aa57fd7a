"""Responses that run without a client: recorded as they go, followed from anywhere, ended exactly once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from app.responses import archive
from app.responses.archive_writes import Record, update
from app.responses.background import LOOK_SECONDS, RECORDS_A_SECOND, BackgroundResponses
from app.responses.event_log import LoggedEvent
from app.responses.feed import Feed
from app.responses.replay import Replay
from app.responses.store import ResponseStore
from app.routes.stored_responses import CANCEL_SECONDS
from protocol.errors import RequestFailedError, UnavailableError
from tests.helpers.stored_responses import Disk, make_feed, make_store, question, tell

T = TypeVar("T")


@asynccontextmanager
async def running(store: ResponseStore) -> AsyncIterator[BackgroundResponses]:
    background = BackgroundResponses(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(background.run)
        await wait_all_tasks_blocked()
        yield background
        nursery.cancel_scope.cancel()


async def read(replay: Replay) -> list[LoggedEvent]:
    told: list[LoggedEvent] = []
    while events := await replay.next():
        told += events
    return told


class SlowToOpen(Disk):
    def __init__(self) -> None:
        super().__init__()
        self.is_there = trio.Event()

    async def __call__(self, function: Callable[[], T], /) -> T:
        result = await super().__call__(function)
        await self.is_there.wait()
        return result


class Work:
    """Tells one message each time it is let."""

    def __init__(self, store: ResponseStore, name: str) -> None:
        self.store = store
        self.feed = make_feed(name, background=True)
        self.feed.log.begin()
        self.send, self.receive = trio.open_memory_channel[str](10)

    async def __call__(self) -> None:
        self.feed.log.run()
        async with self.receive:
            async for text in self.receive:
                if text == "break":
                    raise RequestFailedError("The engine broke")
                tell(self.feed, text)
        self.feed.log.settle("completed")
        await self.store.ended(self.feed.log)
        self.feed.log.publish()


async def started(background: BackgroundResponses, name: str = "resp_1") -> Work:
    assert background.store is not None
    work = Work(background.store, name)
    await background.start(work.feed, [question("one")], work)
    return work


def types(events: list[LoggedEvent]) -> list[str]:
    assert [event.number for event in events] == list(range(events[0].number, events[0].number + len(events)))
    return [event.type.removeprefix("response.") for event in events]


MESSAGE = ["output_item.added", "output_item.done"]


async def test_one_that_comes_while_the_store_is_being_opened_waits_for_it() -> None:
    disk = SlowToOpen()
    store = make_store(disk=disk)
    async with running(store) as background, trio.open_nursery() as nursery:
        nursery.start_soon(started, background)
        await wait_all_tasks_blocked()
        assert disk.num_calls == 1
        disk.is_there.set()
        await wait_all_tasks_blocked()
        assert (await store.get("resp_1")).status == "in_progress"
        background.cancel("resp_1")


async def test_it_runs_to_its_end_and_is_then_read_from_the_store() -> None:
    store = make_store()
    async with running(store) as background:
        work = await started(background)
        assert (await store.get("resp_1")).status == "queued"
        await wait_all_tasks_blocked()
        assert (await store.get("resp_1")).status == "in_progress"
        await work.send.send("hello")
        work.send.close()
        await work.feed.wait_ended()
        await wait_all_tasks_blocked()
        assert background.feed("resp_1") is None
        row = await store.get("resp_1")
        assert row.status == "completed"
        assert json.loads(row.response)["output"][0]["content"][0]["text"] == "hello"
        events = await read(Replay(store, "resp_1", -1, None))
        assert types(events) == ["created", "queued", "in_progress", *MESSAGE, "completed"]
        assert await read(Replay(store, "resp_1", 3, None)) == events[4:]
        assert await read(Replay(store, "resp_1", 5, None)) == []


async def test_a_failure_ends_it_alone_and_its_readers_are_told() -> None:
    store = make_store()
    async with running(store) as background, trio.open_nursery() as nursery:
        broken, other = await started(background), await started(background, "resp_2")
        told: list[LoggedEvent] = []

        async def follow() -> None:
            told.extend(await read(Replay(store, "resp_1", -1, broken.feed)))

        nursery.start_soon(follow)
        await broken.send.send("break")
        await wait_all_tasks_blocked()
        assert types(told)[-1] == "failed"
        body = json.loads((await store.get("resp_1")).response)
        assert body["error"] == {"code": "server_error", "message": "The engine broke"}
        other.send.close()
        await other.feed.wait_ended()
        assert other.feed.log.response.status == "completed"


async def test_an_error_of_ours_is_logged_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_store()) as background:
        feed = make_feed(background=True)

        async def fail() -> None:
            raise ZeroDivisionError("secret")

        await background.start(feed, [], fail)
        await feed.wait_ended()
    error = feed.log.response.error
    assert error is not None
    assert error.message == "Internal error; the server's log has it"
    assert "secret" in caplog.text


async def test_a_cancelled_one_ends_cancelled_for_those_who_follow_it() -> None:
    store = make_store()
    async with running(store) as background:
        work = await started(background)
        await work.send.send("hello")
        await wait_all_tasks_blocked()
        background.cancel("resp_1")
        background.cancel("resp_1")
        events = await read(Replay(store, "resp_1", 2, work.feed))
        assert types(events) == [*MESSAGE, "incomplete"]
        await wait_all_tasks_blocked()
        row = await store.get("resp_1")
        assert row.status == "cancelled"
        assert await read(Replay(store, "resp_1", 2, None)) == events
        background.cancel("resp_1")


async def test_a_deleted_one_is_cancelled_and_leaves_nothing() -> None:
    store = make_store()
    async with running(store) as background:
        work = await started(background)
        await wait_all_tasks_blocked()
        await store.delete("resp_1")
        background.delete("resp_1")
        assert background.feed("resp_1") is None
        await work.feed.wait_ended()
        await wait_all_tasks_blocked()
        assert await store.events("resp_1", -1) == []


async def test_who_follows_what_a_client_deletes_at_another_server_is_told_so_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = make_store()
    async with running(store) as background, trio.open_nursery() as nursery:
        told: list[LoggedEvent] = []

        async def follow() -> None:
            told.extend(await read(Replay(store, "resp_1", -1, None)))

        work = await started(background)
        nursery.start_soon(follow)
        await work.send.send("one")
        await trio.sleep(1)
        await store.delete("resp_1")
        await work.feed.wait_ended()
    assert types(told[:-1]) == ["created", "queued", "in_progress", *MESSAGE]
    assert json.loads(told[-1].data) == {
        "type": "error",
        "sequence_number": told[-2].number + 1,
        "code": "not_found",
        "message": "Response with id 'resp_1' not found",
        "param": None,
    }


async def test_who_has_the_end_of_one_asks_no_more_of_the_store() -> None:
    store = make_store()
    async with running(store) as background:
        work = await started(background)
        work.send.close()
        await work.feed.wait_ended()
        replay = Replay(store, "resp_1", -1, None)
        assert types(await replay.next())[-1] == "completed"
        await store.delete("resp_1")
        assert await replay.next() == []


async def test_what_another_server_was_asked_to_cancel_ends_within_a_second(autojump_clock: trio.abc.Clock) -> None:
    store = make_store()
    async with running(store) as background:
        work = await started(background)
        await store.ask_to_cancel("resp_1")
        with trio.fail_after(2 * LOOK_SECONDS):
            await work.feed.wait_ended()
        assert work.feed.log.response.status == "cancelled"


async def test_many_leave_the_disk_time_for_those_who_ask(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_records = 0

    def counted(connection: sqlite3.Connection, records: Sequence[Record], owner: str, now: float) -> list[bool]:
        nonlocal num_records
        num_records += len(records)
        return update(connection, records, owner, now)

    monkeypatch.setattr(archive, "update", counted)
    store = make_store()
    async with running(store) as background:
        for n in range(2 * RECORDS_A_SECOND):
            await started(background, f"resp_{n}")
        num_records = 0
        await trio.sleep(10)
        assert 0 < num_records <= 11 * RECORDS_A_SECOND
        await store.ask_to_cancel("resp_7")
        feed = background.feed("resp_7")
        assert feed is not None
        with trio.fail_after(CANCEL_SECONDS):
            await feed.wait_ended()


async def test_a_drain_takes_no_more_and_waits_and_then_fails_what_is_left() -> None:
    store = make_store()
    async with running(store) as background:
        quick, slow = await started(background), await started(background, "resp_2")
        background.drain("the server is shutting down")
        with pytest.raises(UnavailableError, match="shutting down"):
            await started(background, "resp_3")
        quick.send.close()
        await quick.feed.wait_ended()
        assert quick.feed.log.response.status == "completed"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(background.finish)
            await wait_all_tasks_blocked()
            assert not slow.feed.log.ended
            background.end_all("The server is shutting down")
    assert slow.feed.log.response.status == "failed"
    error = slow.feed.log.response.error
    assert error is not None
    assert error.message == "The server is shutting down"


async def test_being_stopped_at_once_ends_each_of_them_too() -> None:
    async with running(make_store()) as background:
        work = await started(background)
    assert work.feed.log.response.status == "failed"


async def test_without_a_disk_none_is_begun_and_one_that_runs_goes_on(autojump_clock: trio.abc.Clock) -> None:
    disk = Disk()
    store = make_store(disk=disk)
    async with running(store) as background:
        work = await started(background)
        disk.failure = sqlite3.OperationalError("disk I/O error")
        with pytest.raises(UnavailableError):
            await started(background, "resp_2")
        await work.send.send("hello")
        await trio.sleep(10)
        disk.failure = None
        await trio.sleep(10)
        row = await store.get("resp_1")
        assert row.status == "in_progress"
        work.send.close()
        await work.feed.wait_ended()
        events = await read(Replay(store, "resp_1", -1, None))
        assert types(events) == ["created", "queued", "in_progress", *MESSAGE, "completed"]


async def test_who_follows_one_of_another_server_reads_it_from_the_file(autojump_clock: trio.abc.Clock) -> None:
    store = make_store()
    async with running(store) as background, trio.open_nursery() as nursery:
        work = await started(background)
        told: list[LoggedEvent] = []

        async def follow() -> None:
            told.extend(await read(Replay(store, "resp_1", -1, None)))

        nursery.start_soon(follow)
        for text in ("one", "two"):
            await work.send.send(text)
            await trio.sleep(1)
        work.send.close()
    assert types(told) == ["created", "queued", "in_progress", *MESSAGE, *MESSAGE, "completed"]


@settings(max_examples=40)
@given(data=st.data())
def test_whoever_reads_from_anywhere_at_any_time_reads_the_same_tail(data: st.DataObject) -> None:
    num_messages = data.draw(st.integers(0, 4))
    readers = data.draw(st.lists(st.tuples(st.integers(-1, 13), st.integers(0, num_messages + 1)), max_size=5))

    async def scenario() -> None:
        store = make_store()
        told: list[tuple[int, list[LoggedEvent]]] = []

        async def follow(feed: Feed | None, after: int) -> None:
            told.append((after, await read(Replay(store, "resp_1", after, feed))))

        async with running(store) as background, trio.open_nursery() as nursery:
            work = await started(background)
            for step in range(num_messages + 2):
                for after, begins in readers:
                    if begins == step:
                        nursery.start_soon(follow, background.feed("resp_1"), after)
                if step < num_messages:
                    await work.send.send("hello")
                    if data.draw(st.booleans()):
                        await wait_all_tasks_blocked()
                elif step == num_messages:
                    work.send.close()
                    await work.feed.wait_ended()
        whole = work.feed.log.since(-1)
        assert len(whole) == 4 + 2 * num_messages
        assert len(told) == len(readers)
        for after, events in told:
            assert events == whole[after + 1 :]

    trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
