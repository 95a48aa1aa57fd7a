"""What is asked of the archive at a time, done together: what it is told to write in one transaction and in few
statements, see app/responses/archive_writes.py.

Used by app/responses/archive_access.py, in its worker thread. What one call fails with is that call's alone, unless the
disk is to blame.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, final

import trio
from attrs import define, field, frozen

from app.responses.archive import Archive
from app.responses.archive_writes import Record
from app.responses.stored import StoredResponse

T = TypeVar("T")

OF_THE_CALL = (sqlite3.IntegrityError, sqlite3.DataError)
"""Errors for which the disk is not to blame."""


@frozen
class PutCall:
    """A new response."""

    row: StoredResponse

    def __call__(self, archive: Archive) -> None:
        archive.write([self.row], [])


@frozen
class RecordCall:
    """What became of a response; whether it is to go on."""

    record: Record

    def __call__(self, archive: Archive) -> bool:
        [goes_on] = archive.write([], [self.record])
        return goes_on


@final
@define(eq=False)
class Asked(Generic[T]):
    """A call, and what came of it."""

    call: Callable[[Archive], T]
    _news: trio.Event = field(factory=trio.Event)
    error: Exception | None = None
    _results: list[T] = field(factory=list)

    @property
    def is_done(self) -> bool:
        return bool(self._results) or self.error is not None

    async def wait(self) -> None:
        """Until it is done, or it is its asker's turn to have it done."""
        await self._news.wait()

    def tell(self) -> None:
        """That it is so. On the event loop."""
        self._news.set()
        self._news = trio.Event()

    def succeed(self, result: T) -> None:
        self._results = [result]

    def fail(self, error: Exception) -> None:
        self.error = error

    def do(self, archive: Archive) -> None:
        try:
            self.succeed(self.call(archive))
        except Exception as error:  # its asker's, and nobody else's
            self.fail(error)

    def result(self) -> T:
        """Of one that is done. Raises what it failed with."""
        if self.error is not None:
            raise self.error
        [result] = self._results
        return result


def do_all(archive: Archive, asked: Sequence[Asked[Any]]) -> None:
    """Each is done, or has failed, when this returns. Writes come first: nobody has been told yet of what is written
    here, and can have asked for it. After one that the disk did not do the others fail with the same."""
    writes = [each for each in asked if isinstance(each.call, PutCall | RecordCall)]
    if len(writes) > 1:
        _write(archive, writes)
    failure: sqlite3.Error | None = None
    for each in [*writes, *asked]:
        if each.is_done:
            continue
        if failure is not None:
            each.fail(failure)
            continue
        each.do(archive)
        if isinstance(each.error, sqlite3.Error) and not isinstance(each.error, OF_THE_CALL):
            failure = each.error


def _write(archive: Archive, writes: Sequence[Asked[Any]]) -> None:
    """All of them, or nothing: then they are done one by one, so that one which fails does so alone."""
    puts = [(each, each.call.row) for each in writes if isinstance(each.call, PutCall)]
    records = [(each, each.call.record) for each in writes if isinstance(each.call, RecordCall)]
    try:
        goes_on = archive.write([row for _, row in puts], [record for _, record in records])
    except sqlite3.Error:
        return
    for each, _ in puts:
        each.succeed(None)
    for (each, _), result in zip(records, goes_on, strict=True):
        each.succeed(result)
