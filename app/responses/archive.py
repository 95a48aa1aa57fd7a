"""Responses on disk: one SQLite file, which several servers may share and which outlives them.

Everything here blocks, and is called by app/responses/archive_access.py in a worker thread, one call at a time.
Whatever the disk does comes out as sqlite3.Error or OSError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import final

import msgspec

from app.responses.archive_file import connect, is_at, make_file, transaction
from app.responses.archive_writes import Record, insert, insert_events, size_of, update
from app.responses.bounds import Bounds, Totals, sweep, totals
from app.responses.cut_off import cut_off
from app.responses.owner import Owner
from app.responses.stored import StoredResponse

logger = logging.getLogger("trillm.responses")

_MAX_CHAIN_BYTES = 64 * 2**20
_EVENTS_AT_ONCE = 512

_COLUMNS = "id, status, response, input_items, previous_id, is_background"


class ChainError(Exception):
    """The conversation that a response goes on with cannot be had. `missing`: the id that is not there, if one is."""

    def __init__(self, message: str, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


@final
class Archive:
    """One connection to the file."""

    def __init__(self, path: Path | None, bounds: Bounds, clock: Callable[[], float]) -> None:
        """`path` None: in memory, for this server alone. `clock`: Unix time in seconds, so that restarts do not matter.
        Raises sqlite3.Error and OSError."""
        self._bounds = bounds
        self._clock = clock
        self._puts = 0
        self._owner = None
        self._file: tuple[Path, tuple[int, int]] | None = None
        if path is not None:
            self._file = path, make_file(path)
            self._owner = Owner(path)
        self._name = "" if self._owner is None else self._owner.name
        self._closing = ExitStack()
        with ExitStack() as stack:
            if self._owner is not None:
                stack.callback(self._owner.close)
            self._connection = stack.enter_context(closing(connect(path)))
            self._fail_orphans()
            self._sweep()
            self._closing = stack.pop_all()

    def close(self) -> None:
        """What is still under way counts as lost from now on."""
        self._closing.close()

    def is_in_place(self) -> bool:
        """Whether the file is still where other servers, and this one after a restart, look for it. SQLite goes on
        writing into one that has been removed. Raises OSError."""
        return self._file is None or is_at(*self._file)

    def write(self, rows: Sequence[StoredResponse], records: Sequence[Record]) -> list[bool]:
        """New responses, and then what became of some, all of it or nothing.

        False in the place of a record: its response is to end, because a client has deleted it or has asked another
        server to cancel it. Nothing is kept of one that was deleted or has ended."""
        num_puts = self._puts + len(rows)
        with transaction(self._connection):
            insert(self._connection, rows, self._name, self._clock())
            goes_on = update(self._connection, records, self._name, self._clock())
            if num_puts // self._bounds.num_puts > self._puts // self._bounds.num_puts:
                sweep(self._connection, self._bounds, self._clock())
        self._puts = num_puts
        return goes_on

    def put(self, row: StoredResponse) -> None:
        self.write([row], [])

    def record(self, row: StoredResponse, events: Sequence[tuple[int, bytes]] = ()) -> bool:
        [goes_on] = self.write([], [Record(row, events)])
        return goes_on

    def get(self, response_id: str) -> StoredResponse | None:
        """None: it was never here, was deleted, or is too old. What its server cannot finish any more reads failed."""
        found = self._connection.execute(
            f"SELECT {_COLUMNS}, owner FROM responses WHERE id = ? AND (used_at >= ? OR owner IS NOT NULL)",
            (response_id, self._clock() - self._bounds.seconds),
        ).fetchone()
        if found is None:
            return None
        row, owner = _row(found[:-1]), found[-1]
        if owner is not None and not self._lives(owner):
            return self._fail(row, owner)
        return row

    def delete(self, response_id: str) -> bool:
        """Whether it was there, and `get` would have found it."""
        with transaction(self._connection):
            found = self._connection.execute(
                "DELETE FROM responses WHERE id = ? RETURNING used_at >= ? OR owner IS NOT NULL",
                (response_id, self._clock() - self._bounds.seconds),
            ).fetchall()
        return bool(found and found[0][0])

    def ask_to_cancel(self, response_id: str) -> None:
        """Its server learns of it when it next records something."""
        with transaction(self._connection):
            self._connection.execute("UPDATE responses SET cancel_asked = 1 WHERE id = ?", (response_id,))

    def events(self, response_id: str, starting_after: int) -> list[bytes]:
        """The next events as JSON, some hundreds at most."""
        return [
            bytes(event)
            for (event,) in self._connection.execute(
                "SELECT event FROM events WHERE response_id = ? AND sequence_number > ?"
                " ORDER BY sequence_number LIMIT ?",
                (response_id, starting_after, _EVENTS_AT_ONCE),
            )
        ]

    def chain(self, response_id: str) -> list[StoredResponse]:
        """A response and all that it goes on from, the oldest first; they count as used now. Raises ChainError."""
        chain = self.known_chain(response_id)
        missing = response_id if not chain else chain[0].previous_id
        if missing is not None:
            raise ChainError(f"The response {missing!r} is not stored here", missing=missing)
        with transaction(self._connection):
            self._connection.executemany(
                "UPDATE responses SET used_at = max(used_at, ?) WHERE id = ?",
                [(self._clock(), row.id) for row in chain],
            )
        return chain

    def known_chain(self, response_id: str) -> list[StoredResponse]:
        """The same as far as it is here, and without counting as use. Raises ChainError for more than anybody reads."""
        chain: list[StoredResponse] = []
        wanted: str | None = response_id
        size = 0
        while wanted is not None:
            row = self.get(wanted)
            if row is None:
                break
            size += len(row.response) + len(row.input_items)
            if size > _MAX_CHAIN_BYTES:
                raise ChainError(f"the conversation before it has more than {_MAX_CHAIN_BYTES} bytes")
            chain.append(row)
            wanted = row.previous_id
        return chain[::-1]

    def use_approval(self, approval_request_id: str) -> bool:
        """Whether nobody has before, on any server that shares the file."""
        with transaction(self._connection):
            used = self._connection.execute(
                "INSERT OR IGNORE INTO used_approvals (id) VALUES (?)", (approval_request_id,)
            )
        return used.rowcount > 0

    def totals(self) -> Totals:
        return totals(self._connection)

    def _lives(self, owner: str) -> bool:
        return owner == self._name or (self._owner is not None and self._owner.lives(owner))

    def _fail_orphans(self) -> None:
        """What servers that are gone had under way."""
        if self._owner is None:
            return
        owners = self._connection.execute("SELECT DISTINCT owner FROM responses WHERE owner IS NOT NULL").fetchall()
        for (owner,) in owners:
            if self._lives(owner):
                continue
            for found in self._connection.execute(
                f"SELECT {_COLUMNS} FROM responses WHERE owner = ?", (owner,)
            ).fetchall():
                self._fail(_row(found), owner)
        self._owner.remove_dead()

    def _fail(self, row: StoredResponse, owner: str) -> StoredResponse | None:
        """None: what was recorded cannot be read. Then it goes, since it would stand in the way at each start."""
        with transaction(self._connection):
            told = self._connection.execute(
                "SELECT sequence_number, event FROM events WHERE response_id = ? ORDER BY sequence_number", (row.id,)
            ).fetchall()
            try:
                failed, ends = cut_off(row, [(number, bytes(event)) for number, event in told])
            except msgspec.DecodeError as error:
                logger.error("response %s is deleted, since what was recorded of it cannot be read: %s", row.id, error)
                self._connection.execute("DELETE FROM responses WHERE id = ?", (row.id,))
                return None
            if not row.is_background:
                ends = []
            changed = self._connection.execute(
                "UPDATE responses SET status = ?, response = ?, owner = NULL, used_at = max(used_at, ?),"
                " event_bytes = event_bytes + ? WHERE id = ? AND owner = ?",
                (failed.status, failed.response, self._clock(), size_of(ends), row.id, owner),
            ).rowcount
            if changed:
                insert_events(self._connection, [Record(row, ends)])
        return failed

    def _sweep(self) -> None:
        with transaction(self._connection):
            sweep(self._connection, self._bounds, self._clock())


def _row(found: Sequence[object]) -> StoredResponse:
    identifier, status, response, input_items, previous_id, is_background = found
    assert isinstance(identifier, str)
    assert isinstance(status, str)
    assert isinstance(response, bytes)
    assert isinstance(input_items, bytes)
    assert previous_id is None or isinstance(previous_id, str)
    return StoredResponse(identifier, status, response, input_items, previous_id, bool(is_background))
