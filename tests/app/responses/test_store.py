"""The store as the event loop sees it: what is kept is gone on from, and a disk that fails holds nobody up."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.responses.archive_access import LONGEST_REST_SECONDS, MAX_AT_ONCE, MAX_UNRECORDED, REST_SECONDS
from app.responses.feed import Feed
from app.responses.listed_items import Page
from app.responses.store import ResponseStore
from protocol.errors import BadRequestError, NotFoundError, StartError, UnavailableError
from tests.helpers.full_disk import make_room, small_disk
from tests.helpers.stored_responses import Disk, make_feed, make_store, now, question, tell

T = TypeVar("T")

FULL = sqlite3.OperationalError("database or disk is full")


async def kept(store: ResponseStore, name: str, ask: str, answer: str, previous: str | None = None) -> Feed:
    feed = make_feed(name, previous=previous)
    await store.began(feed.log, [question(ask, f"msg_{ask}")])
    tell(feed, answer)
    feed.log.settle("completed")
    await store.ended(feed.log)
    feed.log.publish()
    return feed


async def test_a_conversation_is_gone_on_from_with_all_that_was_said() -> None:
    store = make_store()
    await kept(store, "resp_1", "one", "eins")
    await kept(store, "resp_2", "two", "zwei", previous="resp_1")
    items = await store.history("resp_2")
    assert [item.type for item in items] == ["message"] * 4
    assert [item.role for item in items] == ["user", "assistant", "user", "assistant"]
    assert [part.text for item in items for part in item.content or [] if not isinstance(part, str)] == [
        *("one", "eins", "two", "zwei")
    ]
    told = json.loads(await store.input_of("resp_2", Page(is_ascending=True)))
    assert [item["content"][0]["text"] for item in told["data"]] == ["one", "eins", "two"]


@pytest.mark.parametrize("name", ["resp_2", "../x", "", "resp_" + "x" * 10_000, "resp_\0"])
async def test_what_is_not_there_is_not_found_in_few_words(name: str) -> None:
    store = make_store()
    with pytest.raises(NotFoundError) as of_history:
        await store.history(name)
    assert of_history.value.code == "previous_response_not_found"
    with pytest.raises(NotFoundError) as of_get:
        await store.get(name)
    with pytest.raises(NotFoundError):
        await store.delete(name)
    with pytest.raises(NotFoundError):
        await store.input_of(name, Page())
    assert len(of_history.value.message) < 300
    assert len(of_get.value.message) < 300


async def test_what_has_not_ended_or_has_failed_is_not_gone_on_from() -> None:
    store = make_store()
    feed = make_feed()
    await store.began(feed.log, [question("one")])
    with pytest.raises(BadRequestError, match="in_progress"):
        await store.history("resp_1")
    feed.log.settle("failed")
    await store.ended(feed.log)
    with pytest.raises(BadRequestError, match="failed"):
        await store.history("resp_1")


async def test_a_full_disk_is_logged_once_and_what_ended_meanwhile_is_kept_later(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk = Disk()
    store = make_store(disk=disk)
    feed = make_feed()
    await store.began(feed.log, [question("one")])
    disk.failure = FULL
    await kept(store, "resp_2", "two", "zwei")
    tell(feed, "eins")
    feed.log.settle("completed")
    for _ in range(3):
        await store.ended(feed.log)
        await trio.sleep(REST_SECONDS)
    with pytest.raises(UnavailableError):
        await store.get("resp_1")
    asked = disk.num_calls
    with pytest.raises(UnavailableError):
        await store.get("resp_1")
    assert disk.num_calls == asked, "a disk that has just failed is left alone"
    disk.failure = None
    await trio.sleep(REST_SECONDS)
    assert (await store.get("resp_1")).status == "completed"
    assert json.loads((await store.get("resp_1")).response)["output"][0]["content"][0]["text"] == "eins"
    with pytest.raises(NotFoundError):
        await store.get("resp_2")  # it was not kept when it began
    told = [record.message for record in caplog.records]
    assert len(told) == 2
    assert "disk is full" in told[0]
    assert "works again" in told[1]


async def test_a_disk_that_is_really_full_loses_nothing_of_what_had_begun(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 400) as directory:
        store = make_store(directory / "responses.sqlite3")
        await kept(store, "resp_0", "zero", "null")
        feed = make_feed()
        await store.began(feed.log, [question("one")])
        filler = directory / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"x" * 4096)
        tell(feed, "eins" * 20_000)
        feed.log.settle("completed")
        await store.ended(feed.log)
        with pytest.raises(UnavailableError):
            await store.get("resp_1")
        filler.unlink()
        await trio.sleep(REST_SECONDS)
        assert (await store.get("resp_1")).status == "completed"
        assert (await store.get("resp_0")).status == "completed"
        await store.close()


async def test_a_full_disk_at_the_start_is_done_without(autojump_clock: trio.abc.Clock, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as directory:
        store = make_store(directory / "responses.sqlite3")
        await store.open()
        await kept(store, "resp_0", "zero", "null")
        with pytest.raises(UnavailableError):
            await store.get("resp_0")
        make_room(directory, 400)
        await trio.sleep(REST_SECONDS)
        await kept(store, "resp_1", "one", "eins")
        assert (await store.get("resp_1")).status == "completed"
        await store.close()


async def test_what_waits_for_the_disk_is_written_when_the_store_is_closed(tmp_path: Path) -> None:
    disk = Disk()
    store = make_store(tmp_path / "responses.sqlite3", disk)
    feed = make_feed()
    await store.began(feed.log, [question("one")])
    disk.failure = FULL
    feed.log.settle("completed")
    await store.ended(feed.log)
    disk.failure = None
    await store.close()
    assert (await make_store(tmp_path / "responses.sqlite3").get("resp_1")).status == "completed"


async def test_a_file_that_is_removed_or_replaced_is_followed_by_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store" / "responses.sqlite3"
    store, other = make_store(path), make_store(path)
    await kept(store, "resp_1", "one", "eins")
    await other.get("resp_1")
    shutil.rmtree(path.parent)

    await kept(other, "resp_2", "two", "zwei")
    with pytest.raises(NotFoundError):
        await store.get("resp_1")
    await kept(store, "resp_3", "three", "drei", previous="resp_2")

    assert len(await other.history("resp_3")) == 4
    assert caplog.text.count("the store of responses was removed or replaced") == 2
    for each in (store, other):
        await each.close()
    assert [file.name for file in path.parent.iterdir()] == ["responses.sqlite3"]


async def test_a_disk_that_does_not_answer_is_asked_less_and_less_often(autojump_clock: trio.abc.Clock) -> None:
    disk = Disk()
    store = make_store(disk=disk)
    disk.failure = trio.TooSlowError()
    asked = []
    began = trio.current_time()

    async def ask() -> None:
        with pytest.raises(UnavailableError):
            await store.get("resp_1")

    while trio.current_time() < began + 200:
        before = disk.num_calls
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        if disk.num_calls > before:
            asked.append(trio.current_time() - began)
        await trio.sleep(1)
    assert asked == [0, 2, 6, 14, 30, 62, 122, 182]
    disk.failure = None
    await trio.sleep(LONGEST_REST_SECONDS)
    await kept(store, "resp_1", "one", "eins")
    disk.failure = FULL
    with pytest.raises(UnavailableError):
        await store.get("resp_1")
    disk.failure = None
    await trio.sleep(REST_SECONDS)
    assert (await store.get("resp_1")).status == "completed"


async def test_what_waits_for_the_disk_is_bounded() -> None:
    disk = Disk()
    store = make_store(disk=disk)
    disk.failure = FULL
    for n in range(MAX_UNRECORDED + 10):
        await kept(store, f"resp_{n}", "q", "a")
    assert store._archive.num_unrecorded == MAX_UNRECORDED


async def test_a_file_that_is_locked_for_long_fails_what_is_asked_and_nothing_else(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "responses.sqlite3")
    await kept(store, "resp_1", "one", "eins")
    with closing(sqlite3.connect(tmp_path / "responses.sqlite3")) as locking:
        locking.execute("BEGIN IMMEDIATE")
        await kept(store, "resp_2", "two", "zwei")
        with pytest.raises(UnavailableError):
            await store.delete("resp_1")
    await trio.sleep(REST_SECONDS)
    await store.delete("resp_1")
    await store.close()


async def test_a_conversation_that_takes_long_to_read_keeps_nobody_else_from_the_disk(
    autojump_clock: trio.abc.Clock,
) -> None:
    disk, waits = Disk(), False

    async def execute(function: Callable[[], T], /) -> T:
        if waits and disk.num_calls == num_found:
            await trio.sleep(60)
        return await disk(function)

    store = ResponseStore(None, now, None, execute)
    await kept(store, "resp_1", "one", "eins")
    num_found, waits = disk.num_calls + 1, True
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def read() -> None:
            with pytest.raises(UnavailableError, match="not read within 5 s"):
                await store.history("resp_1")

        await trio.sleep(1)
        waits = False
        await kept(store, "resp_2", "two", "zwei")
    assert len(await store.history("resp_1")) == 2
    assert len(await store.history("resp_2")) == 2


async def test_who_waits_too_long_for_others_does_not_take_the_disk_for_broken(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()

    async def execute(function: Callable[[], T], /) -> T:
        await trio.sleep(0.9)
        return await disk(function)

    store = ResponseStore(None, now, None, execute)
    told = []

    async def ask() -> None:
        with pytest.raises((NotFoundError, UnavailableError)) as raised:
            await store.get("resp_1")
        told.append(raised.value.message)

    async with trio.open_nursery() as nursery:
        for _ in range(6 * MAX_AT_ONCE):
            nursery.start_soon(ask)
    num_found = sum("not found" in message for message in told)
    assert num_found == 1 + 4 * MAX_AT_ONCE, "the first goes alone"
    assert sum("has more to do than it does within 5 s" in message for message in told) == len(told) - num_found
    await kept(store, "resp_1", "one", "eins")
    assert (await store.get("resp_1")).status == "completed"
    assert "does not work" not in caplog.text


async def test_all_that_is_asked_at_once_is_done_on_one_way_to_the_disk() -> None:
    disk = Disk()
    store = make_store(disk=disk)
    feeds = [make_feed(f"resp_{n}", background=True) for n in range(MAX_AT_ONCE)]
    async with trio.open_nursery() as nursery:
        for feed in feeds:
            feed.log.begin()
            nursery.start_soon(store.put, feed.log, [question("one")])
    assert disk.num_calls <= 2
    async with trio.open_nursery() as nursery:
        for feed in feeds[1:]:
            nursery.start_soon(store.record, feed.log, feed.log.since(-1))
        nursery.start_soon(store.delete, "resp_0")
    assert disk.num_calls <= 4
    with pytest.raises(NotFoundError):
        await store.get("resp_0")
    for feed in feeds[1:]:
        assert (await store.get(feed.log.id)).status == "queued"
        assert await store.events(feed.log.id, -1) == [event.data for event in feed.log.since(-1)]


async def test_one_of_many_that_cannot_be_done_fails_alone(autojump_clock: trio.abc.Clock) -> None:
    store = make_store()
    await kept(store, "resp_3", "three", "drei")
    refused = []

    async def put(name: str) -> None:
        try:
            await store.put(make_feed(name).log, [])
        except UnavailableError:
            refused.append(name)

    async with trio.open_nursery() as nursery:
        for n in range(6):
            nursery.start_soon(put, f"resp_{n}")
    assert refused == ["resp_3"]
    await trio.sleep(REST_SECONDS)
    assert [(await store.get(f"resp_{n}")).status for n in range(6)] == [
        *("in_progress", "in_progress", "in_progress", "completed", "in_progress", "in_progress")
    ]


@pytest.mark.parametrize("num_leaving", [1, 3])
async def test_who_leaves_on_the_way_to_the_disk_leaves_the_others_on_it(
    autojump_clock: trio.abc.Clock, num_leaving: int
) -> None:
    disk, is_slow = Disk(), True

    async def execute(function: Callable[[], T], /) -> T:
        if is_slow:
            await trio.sleep_forever()
        return await disk(function)

    store = ResponseStore(None, now, None, execute)
    async with trio.open_nursery() as nursery, trio.open_nursery() as leaving:
        for n in range(num_leaving):
            leaving.start_soon(store.put, make_feed(f"resp_{n}").log, [])
            await wait_all_tasks_blocked()
        for n in range(num_leaving, 6):
            nursery.start_soon(store.put, make_feed(f"resp_{n}").log, [])
        await wait_all_tasks_blocked()
        is_slow = False
        leaving.cancel_scope.cancel()
    for n in range(6):
        if n >= num_leaving:
            assert (await store.get(f"resp_{n}")).status == "in_progress"
        else:
            with pytest.raises(NotFoundError):
                await store.get(f"resp_{n}")


async def test_in_its_thread_calls_come_one_after_the_other_and_who_leaves_undoes_none(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "responses.sqlite3", now)
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(kept, store, f"resp_{n}", "q", "a")
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.delete("resp_0")
    assert [(await store.get(f"resp_{n}")).status for n in range(1, 20)] == ["completed"] * 19
    await store.close()


async def test_a_directory_that_cannot_be_written_keeps_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = ResponseStore(tmp_path / "file" / "responses.sqlite3", now)
    await store.open()
    await kept(store, "resp_1", "one", "eins")
    with pytest.raises(UnavailableError):
        await store.get("resp_1")
    assert len(caplog.records) == 1
    assert "the store of responses does not work" in caplog.text


@pytest.mark.parametrize("kind", ["directory", "device", "text", "below a file"])
async def test_a_path_that_can_never_hold_the_store_is_refused_where_it_is_required(tmp_path: Path, kind: str) -> None:
    (tmp_path / "text").write_text("no database")
    path = {
        "directory": tmp_path,
        "device": Path("/dev/null"),
        "text": tmp_path / "text",
        "below a file": tmp_path / "text" / "responses.sqlite3",
    }[kind]

    with pytest.raises(StartError, match="the store of responses cannot be at") as raised:
        await ResponseStore(path, now, is_required=True).open()
    assert str(path) in raised.value.message


@pytest.mark.parametrize(
    "failure", [sqlite3.OperationalError("database is locked"), OSError(errno.ENOSPC, "No space left on device")]
)
async def test_a_disk_that_may_work_later_is_not_refused(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    disk.failure = failure
    store = ResponseStore(None, now, None, disk, is_required=True)
    await store.open()
    assert "the store of responses does not work" in caplog.text


async def test_what_goes_on_from_a_deleted_response_is_told_which_one_is_missing() -> None:
    store = make_store()
    await kept(store, "resp_1", "one", "eins")
    await kept(store, "resp_2", "two", "zwei", "resp_1")
    await store.delete("resp_1")

    with pytest.raises(NotFoundError, match="'resp_1' not found, which 'resp_2' goes on from: it was never"):
        await store.history("resp_2")
    assert b"one" not in await store.input_of("resp_2", Page(20))
