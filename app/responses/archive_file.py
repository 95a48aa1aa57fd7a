"""The SQLite file of stored responses, which nobody else reads, with the tables of app/responses/archive.py."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

_VERSION = 1
_BUSY_SECONDS = 1.0
"""How long a call waits for another server's."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    status TEXT NOT NULL,
    response BLOB NOT NULL,
    input_items BLOB NOT NULL,
    previous_id TEXT,
    is_background INTEGER NOT NULL,
    owner TEXT,
    cancel_asked INTEGER NOT NULL DEFAULT 0,
    used_at REAL NOT NULL,
    event_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX by_use ON responses (used_at, id);
CREATE INDEX under_way ON responses (owner) WHERE owner IS NOT NULL;
CREATE TABLE events (
    response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    sequence_number INTEGER NOT NULL,
    event BLOB NOT NULL,
    PRIMARY KEY (response_id, sequence_number)
) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
COMMIT;
"""


def make_file(path: Path) -> None:
    """If it is not there yet, with its directory. Conversations are nobody else's to read. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def connect(path: Path | None) -> sqlite3.Connection:
    """None is a database in memory. Raises sqlite3.Error, also for a file of a later version."""
    # Its caller has one call at a time, though not always from the same thread.
    connection = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        _create(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection) -> None:
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    if version == 0:
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.OperationalError:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            if version == 0:  # no other server has made them meanwhile
                raise
    if version not in (0, _VERSION):
        raise sqlite3.DatabaseError(f"the store has version {version}, and this server reads version {_VERSION}")
