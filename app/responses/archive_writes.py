"""The rows that are written most, many in one statement: after each statement the archive's thread waits for its turn
again, which takes milliseconds while the event loop is busy. A row that is read back costs as much.

Used by app/responses/archive.py, in its transaction. Everything raises sqlite3.Error.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import islice

from attrs import frozen

from app.responses.stored import StoredResponse

_EVENTS_AT_ONCE = 512
"""SQLite takes 32766 values in a statement."""


@frozen
class Record:
    """A response as it is now (an empty `response` leaves the one that is there), and what it has told since the last
    time, as (sequence number, JSON)."""

    row: StoredResponse
    events: Sequence[tuple[int, bytes]] = ()


def insert(connection: sqlite3.Connection, rows: Sequence[StoredResponse], owner: str, now: float) -> None:
    """New responses; `owner` is the server that has those that are under way. `now`: Unix time."""
    if not rows:
        return
    connection.execute(
        "INSERT INTO responses (id, status, response, input_items, previous_id, is_background, owner, used_at)"
        f" VALUES {_places(len(rows), 8)}",
        [
            value
            for row in rows
            for value in (
                *(row.id, row.status, row.response, row.input_items, row.previous_id, row.is_background),
                *(owner if row.is_under_way else None, now),
            )
        ],
    )


def update(connection: sqlite3.Connection, records: Sequence[Record], owner: str, now: float) -> list[bool]:
    """Whether each is to go on, see `Archive.write`. `now`: Unix time, from which on those count that end."""
    goes_on: list[bool] = []
    rest = list(records)
    while rest:
        some = _different(rest)
        rest = rest[len(some) :]
        live = _live(connection, [record.row.id for record in some])
        known = [record for record in some if record.row.id in live]
        if known:
            _change(connection, known, owner, now)
            insert_events(connection, known)
        goes_on += [live.get(record.row.id) == 0 for record in some]
    return goes_on


def _different(records: Sequence[Record]) -> Sequence[Record]:
    """As many of the first as are of one response each: one statement would write but one of two."""
    seen: set[str] = set()
    for at, record in enumerate(records):
        if record.row.id in seen:
            return records[:at]
        seen.add(record.row.id)
    return records


def _live(connection: sqlite3.Connection, ids: Sequence[str]) -> Mapping[str, int]:
    """Those that are there and have no end yet, and whether somebody has asked to cancel them. In one row."""
    [(found,)] = connection.execute(
        "SELECT json_group_object(id, cancel_asked) FROM responses"
        f" WHERE owner IS NOT NULL AND id IN ({', '.join('?' * len(ids))})",
        ids,
    ).fetchall()
    live = json.loads(found)
    assert isinstance(live, dict)
    return live


def _change(connection: sqlite3.Connection, records: Sequence[Record], owner: str, now: float) -> None:
    connection.execute(
        "UPDATE responses SET status = told.column2, response = coalesce(told.column3, response),"
        " owner = told.column4, event_bytes = event_bytes + told.column5,"
        " used_at = max(used_at, coalesce(told.column6, used_at))"
        f" FROM (VALUES {_places(len(records), 6)}) AS told WHERE responses.id = told.column1",
        [
            value
            for record in records
            for value in (
                *(record.row.id, record.row.status, record.row.response or None),
                *(owner if record.row.is_under_way else None, size_of(record.events)),
                None if record.row.is_under_way else now,
            )
        ],
    )


def insert_events(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """What comes twice, because nobody knew whether it was written, is there once."""
    events = ((record.row.id, number, event) for record in records for number, event in record.events)
    while some := list(islice(events, _EVENTS_AT_ONCE)):
        connection.execute(
            f"INSERT OR IGNORE INTO events VALUES {_places(len(some), 3)}", [value for told in some for value in told]
        )


def size_of(events: Sequence[tuple[int, bytes]]) -> int:
    """In bytes."""
    return sum(len(event) for _, event in events)


def _places(num_rows: int, num_columns: int) -> str:
    return ", ".join([f"({', '.join('?' * num_columns)})"] * num_rows)
