"""Keeps responses after they were told: the archive on disk, from the event loop's side.

Implements app/responses/keeper.py for foreground responses, gives app/responses/background.py a place to record into,
and answers app/routes/stored_responses.py. A disk that is full or does not answer fails what is asked of the store, not
the responses that are being told; what could not be recorded is recorded when it goes again.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import msgspec
import trio
from attrs import frozen

from app.responses.archive import Archive, Bounds, ChainError
from app.responses.event_log import EventLog, LoggedEvent
from app.responses.missing import check_id, is_id, not_found, previous_not_found
from app.responses.stored import StoredResponse
from app.schemas.responses import InputItem
from protocol.errors import BadRequestError, UnavailableError

logger = logging.getLogger("trillm.responses")

T = TypeVar("T")
Told = Sequence[tuple[int, bytes]]
Unrecorded = tuple[StoredResponse, Told]

CALL_SECONDS = 5.0
"""What a call may take, with those before it."""
REST_SECONDS = 2.0
"""After a failure the disk is left alone for so long: nobody else waits for it in vain."""
MAX_UNRECORDED = 256
"""Ends of responses that wait for the disk; beyond that the oldest are given up, and read failed after a restart."""
_CHANGES = ("response.in_progress", "response.output_item.added", "response.output_item.done")
"""Events after which the response object reads otherwise: between them it is not written again."""

_ENCODER = msgspec.json.Encoder()


class _Kept(msgspec.Struct):
    output: list[InputItem]


_ITEMS = msgspec.json.Decoder(list[InputItem])
_KEPT = msgspec.json.Decoder(_Kept)
_ANY = msgspec.json.Decoder()


class Execute(Protocol):
    """How the store has something done that blocks."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@frozen
class WorkerThread:
    """One call at a time, in a worker thread. Who waits for it may leave; the call is finished all the same."""

    _limiter: trio.CapacityLimiter

    async def __call__(self, function: Callable[[], T], /) -> T:
        with trio.fail_after(CALL_SECONDS):
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._limiter)


@final
class ResponseStore:
    """Of one API server."""

    keeps = True

    def __init__(
        self,
        path: Path | None,
        clock: Callable[[], float] = time.time,
        bounds: Bounds | None = None,
        execute: Execute | None = None,
    ) -> None:
        """`path` None keeps them in memory. `clock`: Unix time in seconds. Nothing is opened before `open` or the first
        use."""
        self._path = path
        self._open_archive = partial(Archive, path, bounds or Bounds(), clock)
        self._archive: Archive | None = None
        self._execute = execute or WorkerThread(trio.CapacityLimiter(1))
        self._unrecorded: dict[str, Unrecorded] = {}
        self._recorded: dict[str, int] = {}
        """Of background responses under way: the number of the last event that is in the archive."""
        self._rests_until: float | None = None

    # ------------------------------------------------------------------ ResponseKeeper

    async def history(self, response_id: str) -> list[InputItem]:
        """All items up to the end of that response. Raises NotFoundError, BadRequestError and UnavailableError."""
        if not is_id(response_id):
            raise previous_not_found(response_id)
        try:
            return await self._do(lambda archive: _conversation(archive.chain(response_id)))
        except ChainError as error:
            if error.missing is not None:
                raise previous_not_found(error.missing) from error
            raise BadRequestError(f"previous_response_id: {error}", param="previous_response_id") from error

    async def began(self, log: EventLog, input_items: Sequence[InputItem]) -> None:
        """Of a foreground response; those in the background are put here before they begin."""
        if log.response.background:
            return
        try:
            await self.put(log, input_items)
        except UnavailableError:
            pass  # it has been logged; what is not kept is not found later, and answered all the same

    async def ended(self, log: EventLog) -> None:
        """Now, or when the disk takes it; of a background response with the events that are not recorded yet."""
        assert log.last is not None, "it has been settled how it ended"
        row = _row(log)
        events: Told = ()
        if row.is_background:
            events = _told([*log.since(self._recorded.pop(row.id, -1)), log.last])
        try:
            await self._do(lambda archive: archive.record(row, events))
        except UnavailableError:  # it has been logged, and waits
            self._unrecorded[row.id] = (row, events)
            while len(self._unrecorded) > MAX_UNRECORDED:
                del self._unrecorded[next(iter(self._unrecorded))]

    # ------------------------------------------------------------------ for background responses

    async def put(self, log: EventLog, input_items: Sequence[InputItem]) -> None:
        """A new response. Raises UnavailableError."""
        row = _row(log, _ENCODER.encode(input_items))
        await self._do(lambda archive: archive.put(row))

    async def record(self, log: EventLog, events: Sequence[LoggedEvent]) -> bool:
        """A response as it is, and what it has told since the last time. False: it is to end, see `Archive.record`.
        Raises UnavailableError."""
        is_changed = any(event.type in _CHANGES for event in events)
        row, told = _row(log, is_changed=is_changed), _told(events)
        goes_on = await self._do(lambda archive: archive.record(row, told))
        if told and log.last is None:
            self._recorded[row.id] = told[-1][0]
        return goes_on

    # ------------------------------------------------------------------ for the routes

    async def get(self, response_id: str) -> StoredResponse:
        """Raises NotFoundError and UnavailableError."""
        check_id(response_id)
        found = await self._do(lambda archive: archive.get(response_id))
        if found is None:
            raise not_found(response_id)
        return found

    async def delete(self, response_id: str) -> None:
        """Raises NotFoundError and UnavailableError."""
        check_id(response_id)
        if not await self._do(lambda archive: archive.delete(response_id)):
            raise not_found(response_id)

    async def ask_to_cancel(self, response_id: str) -> None:
        """Of a response that another server has under way. Raises UnavailableError."""
        await self._do(lambda archive: archive.ask_to_cancel(response_id))

    async def events(self, response_id: str, starting_after: int) -> list[bytes]:
        """The next ones as JSON. Raises UnavailableError."""
        return await self._do(lambda archive: archive.events(response_id, starting_after))

    async def input_of(self, response_id: str) -> list[dict[str, Any]]:
        """All that a response was an answer to, oldest first, as it was sent and told. Raises NotFoundError,
        BadRequestError and UnavailableError.

        What came before it is told as far as it is still here: the client may have deleted it since."""
        check_id(response_id)
        try:
            items = await self._do(lambda archive: _input(archive.known_chain(response_id)))
        except ChainError as error:
            raise BadRequestError(str(error)) from error
        if items is None:
            raise not_found(response_id)
        return items

    async def open(self) -> None:
        """So that the operator learns at once what would not work, and responses that a killed server had under way
        are told failed."""
        try:
            await self._do(lambda archive: None)
        except UnavailableError:
            pass  # it has been logged

    async def close(self) -> None:
        """When nothing is under way any more."""
        archive, self._archive = self._archive, None
        if archive is not None:
            try:
                await self._execute(archive.close)
            except (sqlite3.Error, OSError, trio.TooSlowError) as error:
                logger.warning("the store of responses was not closed: %s", error)

    async def _do(self, call: Callable[[Archive], T]) -> T:
        """Raises UnavailableError when the disk does not do it, or has just failed to do something else."""
        if self._rests_until is not None and trio.current_time() < self._rests_until:
            raise unavailable()
        left_over = list(self._unrecorded.values())
        try:
            result = await self._execute(partial(self._done, call, left_over))
        except (sqlite3.Error, OSError, trio.TooSlowError) as error:
            if self._rests_until is None:
                told = str(error) or f"no answer within {CALL_SECONDS:g} s"
                logger.error(
                    "the store of responses does not work: %s; answers go on without it (%s)", told, self._path
                )
            self._rests_until = trio.current_time() + REST_SECONDS
            raise unavailable() from error
        if self._rests_until is not None:
            self._rests_until = None
            logger.info("the store of responses works again")
        return result

    def _done(self, call: Callable[[Archive], T], left_over: Sequence[Unrecorded]) -> T:
        """In the worker thread. Nothing is read before what was left over is written."""
        if self._archive is None:
            self._archive = self._open_archive()
        for row, events in left_over:
            if row.id in self._unrecorded:  # no other call has written it meanwhile
                self._archive.record(row, events)
                self._unrecorded.pop(row.id, None)
        return call(self._archive)


def _conversation(chain: Sequence[StoredResponse]) -> list[InputItem]:
    """Up to the end of the last one. In the worker thread, because it may be long. Raises BadRequestError."""
    last = chain[-1]
    if last.is_under_way or last.status == "failed":
        raise BadRequestError(
            f"previous_response_id: the response {last.id!r} is {last.status}, and cannot be gone on from",
            param="previous_response_id",
        )
    items: list[InputItem] = []
    for row in chain:
        items += _ITEMS.decode(row.input_items)
        items += _KEPT.decode(row.response).output
    return items


def _input(chain: Sequence[StoredResponse]) -> list[dict[str, Any]] | None:
    """Up to the last one's input; None without any. In the worker thread as well."""
    if not chain:
        return None
    items: list[dict[str, Any]] = []
    for row in chain[:-1]:
        items += _ANY.decode(row.input_items)
        items += _ANY.decode(row.response)["output"]
    items += _ANY.decode(chain[-1].input_items)
    return items


def unavailable() -> UnavailableError:
    return UnavailableError("The store of responses does not work now; the server's log says why", code="store")


def _row(log: EventLog, input_items: bytes = b"[]", *, is_changed: bool = True) -> StoredResponse:
    response = log.response
    return StoredResponse(
        response.id,
        response.status,
        _ENCODER.encode(response) if is_changed else b"",
        input_items,
        response.previous_response_id,
        response.background,
    )


def _told(events: Sequence[LoggedEvent]) -> list[tuple[int, bytes]]:
    return [(event.number, event.data) for event in events]
