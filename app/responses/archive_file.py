"""The SQLite file of stored responses, which nobody else reads, with the tables of app/responses/archive.py.

A file of an earlier version is brought up to date when it is opened.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BUSY_SECONDS = 1.0
"""How long a call waits for another server's."""

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT})
"""What a disk may say that works again later."""

_RESPONSES = """
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
"""
_USED_APPROVALS = """
CREATE TABLE used_approvals (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE
);
"""
_STEPS = (_RESPONSES, _USED_APPROVALS)
"""Each makes the version before it (0 is an empty file) the next one."""


def make_file(path: Path) -> tuple[int, int]:
    """If it is not there yet, with its directory. Conversations are nobody else's to read. Returns what no other file
    has, as long as this one is open. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return _identity(found)
    finally:
        os.close(descriptor)


def is_lasting(error: sqlite3.Error | OSError) -> bool:
    """Whether what opening failed with is the path's own fault, as a directory or a file of something else, and not
    that of a disk which is full or of another server which has a lock."""
    if isinstance(error, OSError):
        return error.errno not in _PASSING
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)


def is_at(path: Path, identity: tuple[int, int]) -> bool:
    """Whether it is that file. Raises OSError."""
    try:
        return _identity(path.stat()) == identity
    except FileNotFoundError:
        return False


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


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


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing. It waits for another server's before it reads, not in the middle. Raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection) -> None:
    if _version(connection) < len(_STEPS):
        with transaction(connection):
            # Another server may have done it meanwhile: only what is read now holds.
            for number in range(_version(connection), len(_STEPS)):
                for statement in _STEPS[number].split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number + 1}")
    version = _version(connection)
    if version != len(_STEPS):
        raise sqlite3.DatabaseError(f"the store has version {version}, and this server reads version {len(_STEPS)}")


def _version(connection: sqlite3.Connection) -> int:
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    assert isinstance(version, int)
    return version
