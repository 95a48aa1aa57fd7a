"""Responses on disk: what comes back, what goes when, and what several servers make of one file."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from app.responses import bounds
from app.responses.archive import Archive, ChainError
from app.responses.archive_writes import Record
from app.responses.bounds import Bounds
from app.responses.stored import StoredResponse

HOUR = 3600.0


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def row(
    name: str, status: str = "completed", *, previous: str | None = None, background: bool = False, size: int = 0
) -> StoredResponse:
    response = json.dumps({"id": name, "status": status, "output": [], "text": "x" * size}).encode()
    return StoredResponse(name, status, response, b'[{"type":"message"}]', previous, background)


@contextmanager
def opened(path: Path | None, clock: Clock | None = None, **bounds: float) -> Iterator[Archive]:
    archive = Archive(path, Bounds(**bounds), clock or Clock())  # type: ignore[arg-type]
    try:
        yield archive
    finally:
        archive.close()


def names(archive: Archive, count: int) -> list[int]:
    return [n for n in range(count) if archive.get(f"resp_{n}") is not None]


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "responses.sqlite3"
    with opened(path) as archive:
        archive.put(row("resp_1"))
    with opened(path) as archive:
        assert archive.get("resp_1") == row("resp_1")
        assert archive.get("resp_2") is None


def test_only_its_own_user_can_read_the_files(tmp_path: Path) -> None:
    with opened(tmp_path / "store" / "responses.sqlite3") as archive:
        archive.put(row("resp_1"))
        files = list((tmp_path / "store").iterdir())
        assert len(files) == 4
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


def test_an_approval_is_used_once_by_whichever_server_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite3"
    with opened(path) as one, opened(path) as other:
        assert [one.use_approval("mcpr_1"), other.use_approval("mcpr_1"), other.use_approval("mcpr_2")] == [
            *(True, False, True)
        ]
    with opened(path) as archive:
        assert not archive.use_approval("mcpr_1")
        assert not archive.use_approval("mcpr_2")
        assert archive.use_approval("mcpr_3")


def test_of_used_approvals_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bounds, "MAX_APPROVALS", 3)
    with opened(tmp_path / "responses.sqlite3") as archive:
        for number in range(5):
            archive.use_approval(f"mcpr_{number}")
    with opened(tmp_path / "responses.sqlite3") as archive:
        assert [archive.use_approval(f"mcpr_{number}") for number in (4, 3, 2, 1)] == [False, False, False, True]


def test_a_file_of_the_version_before_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite3"
    with opened(path) as archive:
        archive.put(row("resp_1"))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE used_approvals; PRAGMA user_version = 1")
    with opened(path) as archive:
        assert archive.get("resp_1") == row("resp_1")
        assert archive.use_approval("mcpr_1")


def test_what_there_is_is_counted() -> None:
    clock = Clock()
    with opened(None, clock) as archive:
        assert archive.totals() == bounds.Totals()
        first, second = row("resp_1", size=100), row("resp_2", "in_progress", background=True)
        archive.put(first)
        clock.now += HOUR
        archive.put(second)
        archive.record(second, [(0, b"123")])
        size = sum(len(each.response) + len(each.input_items) for each in (first, second)) + 3
        assert archive.totals() == bounds.Totals(2, size, clock.now - HOUR)


def test_what_is_deleted_is_gone_with_its_events_and_is_not_written_again() -> None:
    with opened(None) as archive:
        archive.put(row("resp_1", "in_progress", background=True))
        assert archive.record(row("resp_1", "in_progress"), [(0, b"{}")])
        assert archive.delete("resp_1")
        assert not archive.delete("resp_1")
        assert not archive.record(row("resp_1"), [(1, b"{}")])
        assert archive.get("resp_1") is None
        assert archive.events("resp_1", -1) == []


def test_events_come_back_in_order_from_any_of_them() -> None:
    with opened(None) as archive:
        archive.put(row("resp_1", "in_progress", background=True))
        archive.record(row("resp_1", "in_progress"), [(n, b"%d" % n) for n in range(3)])
        archive.record(row("resp_1"), [(n, b"%d" % n) for n in range(3, 5)])
        for after in range(-1, 6):
            assert archive.events("resp_1", after) == [b"%d" % n for n in range(after + 1, 5)]


def test_what_has_ended_stays_as_it_is() -> None:
    with opened(None) as archive:
        archive.put(row("resp_1", "in_progress", background=True))
        archive.record(row("resp_1"), [(0, b"{}")])
        assert not archive.record(row("resp_1", "in_progress"), [(1, b"{}")])
        assert archive.get("resp_1") == row("resp_1", background=True)
        assert archive.events("resp_1", -1) == [b"{}"]


def test_many_are_written_at_once_and_each_as_it_would_be_alone() -> None:
    with opened(None) as archive:
        archive.put(row("resp_0"))
        archive.put(row("resp_1", "in_progress", background=True))
        archive.ask_to_cancel("resp_1")
        num_events = 1000
        records = [
            Record(row("resp_0"), [(0, b"late")]),
            Record(row("resp_1", "in_progress"), [(0, b"0")]),
            Record(row("resp_2", "in_progress"), [(n, b"%d" % n) for n in range(num_events)]),
            Record(row("resp_9"), [(0, b"{}")]),
            Record(row("resp_2"), [(num_events, b"last")]),
            Record(row("resp_2"), [(num_events + 1, b"never")]),
        ]
        rows = [row(f"resp_{n}", "in_progress", background=True) for n in (2, 3)]
        assert archive.write(rows, records) == [False, False, True, False, True, False]
        assert [archive.events(f"resp_{n}", -1) for n in (0, 1, 3, 9)] == [[], [b"0"], [], []]
        assert len(archive.events("resp_2", 600)) == num_events - 600
        assert archive.events("resp_2", num_events - 1) == [b"last"]
        assert archive.get("resp_2") == row("resp_2", background=True)
        assert archive.get("resp_3") == rows[1]
        assert archive.get("resp_9") is None


def test_of_what_is_written_at_once_all_is_or_nothing() -> None:
    with opened(None) as archive:
        archive.put(row("resp_1", "in_progress"))
        with pytest.raises(sqlite3.IntegrityError):
            archive.write([row("resp_2"), row("resp_1")], [Record(row("resp_1"))])
        assert archive.get("resp_2") is None
        assert archive.get("resp_1") == row("resp_1", "in_progress")


def test_the_least_recently_used_go_first_and_nothing_that_is_under_way() -> None:
    clock = Clock()
    with opened(None, clock, max_responses=10) as archive:
        archive.put(row("resp_0", "in_progress"))
        for n in range(1, 128):
            clock.now += 1
            archive.put(row(f"resp_{n}"))
            archive.chain("resp_1")
        assert names(archive, 128) == [0, 1, *range(119, 128)]


def test_bytes_are_bounded_too() -> None:
    clock = Clock()
    with opened(None, clock, max_bytes=10_000) as archive:
        for n in range(64):
            clock.now += 1
            archive.put(row(f"resp_{n}", size=2000))
        assert names(archive, 64) == [60, 61, 62, 63]


def test_what_is_too_old_is_gone_at_once_and_from_the_file_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "responses.sqlite3"
    with opened(path, clock, seconds=HOUR) as archive:
        archive.put(row("resp_0"))
        archive.put(row("resp_1"))
        clock.now += HOUR - 1
        assert archive.chain("resp_1") == [row("resp_1")]
        clock.now += 2
        assert names(archive, 2) == [1]
    with opened(path, clock, seconds=HOUR), sqlite3.connect(path) as connection:
        assert connection.execute("SELECT id FROM responses").fetchall() == [("resp_1",)]
    connection.close()


def test_what_is_too_old_is_not_there_to_be_deleted() -> None:
    clock = Clock()
    with opened(None, clock, seconds=HOUR) as archive:
        archive.put(row("resp_1"))
        clock.now += HOUR + 1
        assert archive.get("resp_1") is None
        assert not archive.delete("resp_1")


def test_a_response_is_kept_for_its_time_from_its_end_on_however_long_it_ran() -> None:
    clock = Clock()
    with opened(None, clock, seconds=HOUR, max_responses=2) as archive:
        archive.put(row("resp_1", "in_progress", background=True))
        clock.now += 2 * HOUR
        assert archive.record(row("resp_1", "in_progress"))
        archive.record(row("resp_1"))
        clock.now += HOUR - 1
        archive.put(row("resp_2", "in_progress"))  # looks for what is too old
        assert archive.get("resp_1") is not None
        clock.now += 2
        assert archive.get("resp_1") is None


def test_a_chain_is_the_whole_conversation_from_its_beginning() -> None:
    with opened(None) as archive:
        for n in range(4):
            archive.put(row(f"resp_{n}", previous=f"resp_{n - 1}" if n else None))
        assert [found.id for found in archive.chain("resp_3")] == ["resp_0", "resp_1", "resp_2", "resp_3"]
        assert [found.id for found in archive.chain("resp_0")] == ["resp_0"]


def test_a_chain_with_a_gap_names_what_is_missing() -> None:
    with opened(None) as archive:
        for n in range(4):
            archive.put(row(f"resp_{n}", previous=f"resp_{n - 1}" if n else None))
        archive.delete("resp_1")
        with pytest.raises(ChainError, match="resp_1") as raised:
            archive.chain("resp_3")
        assert raised.value.missing == "resp_1"


def test_a_chain_that_nobody_could_read_is_refused_before_memory_is_full() -> None:
    with opened(None) as archive:
        for n in range(5):
            archive.put(row(f"resp_{n}", previous=f"resp_{n - 1}" if n else None, size=15 * 2**20))
        with pytest.raises(ChainError, match="67108864 bytes"):
            archive.chain("resp_4")


def test_what_a_live_server_has_under_way_stays_so_for_the_others_who_can_ask_it_to_cancel(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite3"
    with opened(path) as one:
        one.put(row("resp_1", "in_progress", background=True))
        with opened(path) as other:
            assert other.get("resp_1") == row("resp_1", "in_progress", background=True)
            assert one.record(row("resp_1", "in_progress"), [(0, b"{}")])
            other.ask_to_cancel("resp_1")
            assert not one.record(row("resp_1", "in_progress"), [(1, b"{}")])
            assert other.events("resp_1", -1) == [b"{}", b"{}"]


KILLED = """
import os, signal, sys
from pathlib import Path
from app.responses import bounds
from app.responses.archive import Archive, Bounds
from app.responses.stored import StoredResponse
archive = Archive(Path(sys.argv[1]), Bounds(), lambda: 1e6)
body = b'{"status":"in_progress","error":null,"output":[]}'
for name, background in (("resp_1", True), ("resp_2", False)):
    archive.put(StoredResponse(name, "in_progress", body, b"[]", None, background))
told = [
    b'{"type":"response.created"}',
    b'{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1","status":"done"}}',
    b'{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs_1"}}',
    b'{"type":"response.output_item.added","output_index":1,"item":'
    b'{"type":"message","id":"msg_1","role":"assistant","status":"in_progress","content":[]}}',
    b'{"type":"response.output_text.delta","output_index":1,"item_id":"msg_1","delta":"Hello"}',
]
row = StoredResponse("resp_1", "in_progress", body, b"[]", None, True)
archive.record(row, list(enumerate(told)))
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("sees_it_die", [True, False])
def test_what_a_server_that_was_killed_had_under_way_reads_failed_with_what_was_done(
    tmp_path: Path, sees_it_die: bool
) -> None:
    path = tmp_path / "responses.sqlite3"
    arguments = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        early = Archive(path, Bounds(), Clock()) if sees_it_die else None
        if early is not None:
            found = early.get("resp_1")
            assert found is not None
            assert found.is_under_way
        process.kill()
        process.wait()
    archive = early or Archive(path, Bounds(), Clock())
    found = archive.get("resp_1")
    assert found is not None
    assert found.status == "failed"
    assert found.is_background
    body = json.loads(found.response)
    assert body["status"] == "failed"
    assert body["error"] == {"code": "server_error", "message": "The server stopped before this response was complete"}
    assert body["output"][0] == {"type": "reasoning", "id": "rs_1"}
    assert body["output"][1]["status"] == "incomplete"
    assert [part["text"] for part in body["output"][1]["content"]] == ["Hello"]
    assert archive.get("resp_1") == found
    ends = [json.loads(event) for event in archive.events("resp_1", 4)]
    assert [event["type"].removeprefix("response.") for event in ends] == [
        *("output_text.done", "content_part.done", "output_item.done", "failed")
    ]
    assert ends[-2]["item"] == body["output"][1]
    assert ends[-1] == {"type": "response.failed", "sequence_number": 8, "response": body}
    plain = archive.get("resp_2")
    assert plain is not None
    assert plain.status == "failed"
    assert archive.events("resp_2", -1) == []
    archive.close()
    with opened(path):
        assert len(list(tmp_path.glob("*-owner-*"))) == 1


def test_a_file_that_is_no_store_or_a_newer_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite3"
    path.write_bytes(b"something else, and long enough to be taken for a page of a database" * 20)
    with pytest.raises(sqlite3.DatabaseError):
        Archive(path, Bounds(), Clock())
    newer = tmp_path / "newer.sqlite3"
    with opened(newer):
        pass
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(sqlite3.DatabaseError, match="version 7"):
        Archive(newer, Bounds(), Clock())
    assert path.read_bytes().startswith(b"something else")
    assert list(tmp_path.glob("*-owner-*")) == []


def test_few_are_counted_at_once_and_more_than_sqlite_counts_are_not_refused() -> None:
    with opened(None, max_responses=3) as archive:
        for n in range(8):
            archive.put(row(f"resp_{n}"))
        assert archive.totals().num_responses == 3
    with opened(None, max_responses=2**70) as archive:
        for n in range(70):
            archive.put(row(f"resp_{n}"))
        assert archive.totals().num_responses == 70


@pytest.mark.parametrize("damage", [b"{", b"[]"])
def test_a_response_that_cannot_be_read_any_more_goes_and_keeps_no_server_from_starting(
    tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "responses.sqlite3"
    with opened(path) as archive:
        archive.put(row("resp_1", "in_progress", background=True))
        archive.put(row("resp_2", "in_progress", background=True))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE responses SET response = ? WHERE id = 'resp_1'", (damage,))
    with opened(path) as archive:
        assert archive.get("resp_1") is None
        found = archive.get("resp_2")
        assert found is not None
        assert found.status == "failed"
