"""The way from the event loop to the archive, which blocks: in a worker thread, where all that is asked meanwhile is
done together. Under load the way there takes longer than the call.

Used by app/responses/store.py. A disk that is full or does not answer is left alone for a while, so that nobody else
waits for it in vain, and what could not be recorded is recorded when it goes again.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import trio
from attrs import frozen

from app.responses.archive import Archive
from app.responses.archive_calls import OF_THE_CALL, Asked, RecordCall, do_all
from app.responses.archive_file import is_lasting
from app.responses.archive_writes import Record
from app.responses.bounds import Bounds
from protocol.errors import StartError, UnavailableError

logger = logging.getLogger("trillm.responses")

T = TypeVar("T")

CALL_SECONDS = 5.0
"""What a call may take, with those before it."""
REST_SECONDS = 2.0
"""After a failure the disk is left alone for so long."""
LONGEST_REST_SECONDS = 60.0
"""Each time that it does not answer at all, twice as long: whoever asks next waits for it."""
MAX_UNRECORDED = 256
"""Ends of responses that wait for the disk; beyond that the oldest are given up, and read failed after a restart."""
MAX_AT_ONCE = 64
"""Calls. They are to be done well within the time of one, also if each of them takes long."""


class Execute(Protocol):
    """How something is done that blocks."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@frozen
class WorkerThread:
    """One call at a time, in a worker thread. Who waits for it may leave; the call is finished all the same."""

    _limiter: trio.CapacityLimiter

    async def __call__(self, function: Callable[[], T], /) -> T:
        with trio.fail_after(CALL_SECONDS):
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limiter)


@final
class ArchiveAccess:
    """Opens the archive when it is first needed."""

    def __init__(
        self, path: Path | None, bounds: Bounds, clock: Callable[[], float], execute: Execute | None = None
    ) -> None:
        self._path = path
        self._open_archive = partial(Archive, path, bounds, clock)
        self._archive: Archive | None = None
        self._execute = execute or WorkerThread(trio.CapacityLimiter(1))
        self._asked: dict[Asked[Any], None] = {}
        """What somebody waits for, in order."""
        self._is_at_work = False
        """Whether one of those who wait has the first of it done."""
        self._unrecorded: dict[str, Record] = {}
        self._rests_until: float | None = None
        self._rest_seconds = REST_SECONDS
        """After the next failure."""
        self._failed_at = -math.inf
        self._worked_at = -math.inf
        """When a call was done last: who waited in vain meanwhile has waited for others, and the disk is well."""

    @property
    def num_unrecorded(self) -> int:
        """How many ends of responses wait for the disk."""
        return len(self._unrecorded)

    async def check(self) -> None:
        """Opens the archive. Raises StartError for a path that can never hold it; what else may be wrong is told by the
        first call."""
        try:
            with trio.fail_after(CALL_SECONDS):
                await self._result_of(Asked(lambda archive: None))
        except (sqlite3.Error, OSError, trio.TooSlowError) as error:
            if not isinstance(error, trio.TooSlowError) and is_lasting(error):
                raise StartError(f"the store of responses cannot be at {self._path}: {error}") from error

    async def do(self, call: Callable[[Archive], T]) -> T:
        """Raises UnavailableError when the disk does not do it, or has just failed to do something else."""
        if self._rests_until is not None and trio.current_time() < self._rests_until:
            raise unavailable()
        asked_at = trio.current_time()
        try:
            with trio.fail_after(CALL_SECONDS):
                result = await self._result_of(Asked(call))
        except (sqlite3.Error, OSError, trio.TooSlowError) as error:
            if isinstance(error, trio.TooSlowError) and asked_at <= self._worked_at:
                raise busy() from error
            if self._rests_until is None:
                told = str(error) or f"no answer within {CALL_SECONDS:g} s"
                logger.error(
                    "the store of responses does not work: %s; answers go on without it (%s)", told, self._path
                )
            if asked_at > self._failed_at:  # who asked before that has waited for the same
                self._rest(isinstance(error, trio.TooSlowError))
            raise unavailable() from error
        self._worked_at = trio.current_time()
        self._rest_seconds = REST_SECONDS
        if self._rests_until is not None:
            self._rests_until = None
            logger.info("the store of responses works again")
        return result

    def _rest(self, is_mute: bool) -> None:
        self._failed_at = trio.current_time()
        self._rests_until = self._failed_at + self._rest_seconds
        if is_mute:
            self._rest_seconds = min(2 * self._rest_seconds, LONGEST_REST_SECONDS)

    async def _result_of(self, asked: Asked[T]) -> T:
        """Raises what it fails with."""
        self._asked[asked] = None
        try:
            while not asked.is_done:
                if self._is_at_work:
                    await asked.wait()
                else:
                    await self._work()
            return asked.result()
        finally:
            self._asked.pop(asked, None)
            self._wake()  # who leaves may have been the next to work

    async def _work(self) -> None:
        """Has done what is asked now, whoever asks. If its caller leaves, what has begun is finished all the same."""
        some = [asked for asked in self._asked if not asked.is_done][:MAX_AT_ONCE]
        left_over = list(self._unrecorded.values())
        self._is_at_work = True
        try:
            await self._execute(partial(self._done, some, left_over))
        except (sqlite3.Error, OSError, trio.TooSlowError) as error:
            for asked in self._asked:
                if not asked.is_done:
                    asked.fail(error)
        finally:
            self._is_at_work = False
            for asked in [asked for asked in self._asked if asked.is_done]:
                del self._asked[asked]
                asked.tell()
            self._wake()

    def _wake(self) -> None:
        """Somebody who sees to what is left."""
        if self._asked and not self._is_at_work:
            next(iter(self._asked)).tell()

    def record_later(self, record: Record) -> None:
        """With the next call that the disk does."""
        self._unrecorded[record.row.id] = record
        while len(self._unrecorded) > MAX_UNRECORDED:
            self._unrecorded.pop(next(iter(self._unrecorded)), None)  # the worker thread takes from it, too

    async def close(self) -> None:
        """When nothing is under way any more. What waits for the disk is tried once more."""
        try:
            await self._execute(self._closed)
        except (sqlite3.Error, OSError, trio.TooSlowError) as error:
            logger.warning("the store of responses was not closed: %s", error)

    def _closed(self) -> None:
        """In the worker thread."""
        try:
            if self._unrecorded:
                self._done([], list(self._unrecorded.values()))
        finally:
            archive, self._archive = self._archive, None
            if archive is not None:
                archive.close()

    def _done(self, asked: Sequence[Asked[Any]], left_over: Sequence[Record]) -> None:
        """In the worker thread. Nothing is read before what was left over is written. Raises what opening fails
        with."""
        if self._archive is not None and not self._archive.is_in_place():
            logger.error("the store of responses was removed or replaced: another one is opened (%s)", self._path)
            archive, self._archive = self._archive, None
            archive.close()
        if self._archive is None:
            self._archive = self._open_archive()
        # A thread that nobody waits for any more may have done some of it meanwhile.
        late = {record.row.id: Asked(RecordCall(record)) for record in left_over if record.row.id in self._unrecorded}
        do_all(self._archive, [*late.values(), *(each for each in asked if not each.is_done)])
        for response_id, each in late.items():
            if isinstance(each.error, OF_THE_CALL):
                logger.error("the response %s could not be kept: %s", response_id, each.error)
            if each.error is None or isinstance(each.error, OF_THE_CALL):
                self._unrecorded.pop(response_id, None)


def busy() -> UnavailableError:
    return UnavailableError(
        f"The store of responses has more to do than it does within {CALL_SECONDS:g} s; try again", code="store"
    )


def unavailable() -> UnavailableError:
    return UnavailableError("The store of responses does not work now; the server's log says why", code="store")
