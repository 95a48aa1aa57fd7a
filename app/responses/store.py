"""Keeps responses after they were told: the archive on disk, from the event loop's side.

Implements app/responses/keeper.py for foreground responses, gives app/responses/background.py a place to record into,
and answers app/routes/stored_responses.py. A disk that is full or does not answer fails what is asked of the store, not
the responses that are being told; what could not be recorded is recorded when it goes again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, final

import msgspec
import trio

from app.responses.archive import Archive, ChainError
from app.responses.archive_access import ArchiveAccess, Execute, WorkerThread
from app.responses.archive_calls import PutCall, RecordCall
from app.responses.archive_writes import Record
from app.responses.bounds import Bounds, Totals
from app.responses.event_log import EventLog, LoggedEvent
from app.responses.listed_items import Page
from app.responses.missing import check_id, is_id, not_found, previous_not_found
from app.responses.stored import StoredResponse
from app.responses.stored_conversation import conversation, whole_input
from app.schemas.responses import InputItem
from protocol.errors import BadRequestError, UnavailableError

T = TypeVar("T")

READ_SECONDS = 5.0
"""What reading a conversation may take, with those before it."""
MEASURE_SECONDS = 10.0
"""How often it is counted what there is, however often that is asked."""
_CHANGES = (
    "response.in_progress",
    *("response.output_item.added", "response.mcp_call_arguments.done", "response.output_item.done"),
)
"""Events after which the response object reads otherwise: between them it is not written again."""

_ENCODER = msgspec.json.Encoder()


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
        *,
        is_required: bool = False,
    ) -> None:
        """`path` None keeps them in memory. `clock`: Unix time in seconds. Nothing is opened before `open` or the first
        use. `is_required`: a path that cannot be used is `open`'s error."""
        self._is_required = is_required
        self._archive = ArchiveAccess(path, bounds or Bounds(), clock, execute)
        self._execute = execute or WorkerThread(trio.CapacityLimiter(1))
        self._turn = trio.Lock()
        self._recorded: dict[str, int] = {}
        """Of background responses under way: the number of the last event that is in the archive."""
        self._totals = Totals()
        self._measured_at: float | None = None

    # ------------------------------------------------------------------ ResponseKeeper

    async def history(self, response_id: str) -> list[InputItem]:
        """All items up to the end of that response. Raises NotFoundError, BadRequestError and UnavailableError."""
        if not is_id(response_id):
            raise previous_not_found(response_id, response_id)
        try:
            return await self._read(lambda archive: archive.chain(response_id), conversation)
        except ChainError as error:
            if error.missing is not None:
                raise previous_not_found(error.missing, response_id) from error
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
        events: list[tuple[int, bytes]] = []
        if row.is_background:
            events = _told([*log.since(self._recorded.pop(row.id, -1)), log.last])
        record = Record(row, events)
        try:
            await self._archive.do(RecordCall(record))
        except UnavailableError:  # it has been logged, and waits
            self._archive.record_later(record)

    # ------------------------------------------------------------------ for background responses

    async def put(self, log: EventLog, input_items: Sequence[InputItem]) -> None:
        """A new response. Raises UnavailableError."""
        row = _row(log, _ENCODER.encode(input_items))
        await self._archive.do(PutCall(row))

    async def record(self, log: EventLog, events: Sequence[LoggedEvent]) -> bool:
        """A response as it is, and what it has told since the last time. False: it is to end, see `Archive.write`.
        Raises UnavailableError."""
        is_changed = any(event.type in _CHANGES for event in events)
        row, told = _row(log, is_changed=is_changed), _told(events)
        goes_on = await self._archive.do(RecordCall(Record(row, told)))
        if told and log.last is None:
            self._recorded[row.id] = told[-1][0]
        return goes_on

    # ------------------------------------------------------------------ for the routes

    async def get(self, response_id: str) -> StoredResponse:
        """Raises NotFoundError and UnavailableError."""
        check_id(response_id)
        found = await self._archive.do(lambda archive: archive.get(response_id))
        if found is None:
            raise not_found(response_id)
        return found

    async def delete(self, response_id: str) -> None:
        """Raises NotFoundError and UnavailableError."""
        check_id(response_id)
        if not await self._archive.do(lambda archive: archive.delete(response_id)):
            raise not_found(response_id)

    async def ask_to_cancel(self, response_id: str) -> None:
        """Of a response that another server has under way. Raises UnavailableError."""
        await self._archive.do(lambda archive: archive.ask_to_cancel(response_id))

    async def events(self, response_id: str, starting_after: int) -> list[bytes]:
        """The next ones as JSON. Raises UnavailableError."""
        return await self._archive.do(lambda archive: archive.events(response_id, starting_after))

    async def input_of(self, response_id: str, page: Page) -> bytes:
        """What a response was an answer to, as it was sent and told, as JSON. Raises NotFoundError, BadRequestError and
        UnavailableError.

        What came before it is told as far as it is still here: the client may have deleted it since."""
        check_id(response_id)
        try:
            told = await self._read(
                lambda archive: archive.known_chain(response_id),
                lambda chain: _ENCODER.encode(page.of(whole_input(chain))) if chain else None,
            )
        except ChainError as error:
            raise BadRequestError(str(error)) from error
        if told is None:
            raise not_found(response_id)
        return told

    async def open(self) -> None:
        """So that the operator learns at once what would not work, and responses that a killed server had under way
        are told failed. Raises StartError for a path that can never hold the store, where that is required."""
        if self._is_required:
            await self._archive.check()
        try:
            await self._archive.do(lambda archive: None)
        except UnavailableError:
            pass  # it has been logged

    async def close(self) -> None:
        """When nothing is under way any more."""
        await self._archive.close()

    async def _read(
        self, find: Callable[[Archive], list[StoredResponse]], read: Callable[[list[StoredResponse]], T]
    ) -> T:
        """Long conversations take their time: they are read one after the other, and beside what else the disk does.
        Raises ChainError, what `read` raises, and UnavailableError."""
        try:
            with trio.fail_after(READ_SECONDS):
                async with self._turn:
                    chain = await self._archive.do(find)
                    return await self._execute(partial(read, chain))
        except trio.TooSlowError as error:
            raise UnavailableError(
                f"The conversation was not read within {READ_SECONDS:g} s, with those before it", code="store"
            ) from error

    # ------------------------------------------------------------------ for tools and metrics

    async def use_approval(self, approval_request_id: str) -> bool:
        """See app/tools/approvals.py. Raises UnavailableError."""
        return await self._archive.do(lambda archive: archive.use_approval(approval_request_id))

    @property
    def totals(self) -> Totals:
        """As they were measured last."""
        return self._totals

    @property
    def num_unrecorded(self) -> int:
        """How many ends of responses wait for the disk."""
        return self._archive.num_unrecorded

    async def measure(self) -> None:
        """Counts what there is, unless that was done some seconds ago, or the disk does not do it."""
        now = trio.current_time()
        if self._measured_at is None or now - self._measured_at >= MEASURE_SECONDS:
            self._measured_at = now
            try:
                self._totals = await self._archive.do(lambda archive: archive.totals())
            except UnavailableError:
                pass  # it has been logged


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
