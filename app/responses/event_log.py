"""What happened in one response, in order: the only place where events get their numbers. Pure.

Written by app/responses/run.py and app/responses/turn.py; read by streams from wherever they are, and by what keeps
responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from attrs import frozen

from app import sse
from app.responses.item_so_far import item_so_far
from app.schemas.response_events import (
    FunctionCallArgumentsDelta,
    McpCallArgumentsDelta,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    ReasoningTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    TerminalEvent,
)
from app.schemas.responses import (
    IncompleteDetails,
    McpCallItem,
    OutputItem,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
)

_ENCODER = msgspec.json.Encoder()
EndStatus = Literal["completed", "incomplete", "failed", "cancelled"]
_ENDS: dict[EndStatus, type[TerminalEvent]] = {
    "completed": ResponseCompleted,
    "incomplete": ResponseIncomplete,
    "cancelled": ResponseIncomplete,
    "failed": ResponseFailed,
}


_DELTAS = (OutputTextDelta, ReasoningTextDelta, FunctionCallArgumentsDelta, McpCallArgumentsDelta)


@frozen
class LoggedEvent:
    number: int
    type: str
    data: bytes
    """Of the whole event, as JSON."""

    @property
    def frame(self) -> bytes:
        return b"event: " + self.type.encode() + b"\n" + sse.raw_event(self.data)


class EventLog:
    """Of one response. Exactly one event ends it, and none comes after that."""

    def __init__(
        self, response: Response, *, keeps_events: bool = True, on_event: Callable[[], None] | None = None
    ) -> None:
        """`response` as it is at the beginning, without output. Without `keeps_events` only items and counts are
        kept. `on_event` is called after each event, for readers that wait."""
        self._response = response
        self._keeps_events = keeps_events
        self._on_event = on_event
        self._events: list[LoggedEvent] = []
        self._num_events = 0
        self._num_forgotten = 0
        self._items: list[OutputItem] = []
        self._texts: dict[int, list[str]] = {}
        """Of those that are not done: their text, thoughts or arguments so far, by index."""
        self._usage: ResponseUsage | None = None
        self._last: LoggedEvent | None = None
        self._ended = False

    @property
    def id(self) -> str:
        return self._response.id

    @property
    def num_events(self) -> int:
        """How many there were; the next one has this number."""
        return self._num_events

    @property
    def ended(self) -> bool:
        """Whether readers have the event that ends it."""
        return self._ended

    @property
    def last(self) -> LoggedEvent | None:
        """The event that ends it, once it is settled, though it may not be told yet."""
        return self._last

    @property
    def items(self) -> Sequence[OutputItem]:
        """As they are known: what is not done yet is as it was added."""
        return self._items

    @property
    def has_calls(self) -> bool:
        """Whether a tool of a server's has been called, which nobody can take back."""
        return any(isinstance(item, McpCallItem) for item in self._items)

    @property
    def status(self) -> ResponseStatus:
        return self._response.status

    @property
    def response(self) -> Response:
        """As it is now: of an item that is not done there is what has been told of it."""
        output = list(self._items)
        for index, texts in self._texts.items():
            texts[:] = ["".join(texts)]
            output[index] = item_so_far(output[index], texts[0])
        return msgspec.structs.replace(self._response, output=output)

    def begin(self) -> None:
        """Tells that the response exists: it is created, and queued if that is its status."""
        assert self._num_events == 0, "a response begins once"
        self.append(ResponseCreated(response=self.response))
        if self._response.status == "queued":
            self.append(ResponseQueued(response=self.response))

    def run(self) -> None:
        """Tells that it is worked on."""
        self._response = msgspec.structs.replace(self._response, status="in_progress")
        self.append(ResponseInProgress(response=self.response))

    def append(self, event: ResponseEvent) -> None:
        """Gives the event its number. Items are taken note of. Not for events that end the response: see `settle`."""
        assert self._last is None, "nothing comes after the end"
        if isinstance(event, OutputItemAdded):
            assert event.output_index == len(self._items), "items are added in order"
            self._items.append(event.item)
            self._texts[event.output_index] = []
        elif isinstance(event, OutputItemDone):
            self._items[event.output_index] = event.item
            del self._texts[event.output_index]
        elif isinstance(event, _DELTAS) and event.output_index in self._texts:
            self._texts[event.output_index].append(event.delta)
        if self._keeps_events:
            self._events.append(self._logged(event))
        self._num_events += 1
        self._tell()

    def note_usage(self, usage: ResponseUsage) -> None:
        """What it has taken until it is ended by somebody who does not know that."""
        self._usage = usage

    def settle(
        self,
        status: EndStatus,
        *,
        usage: ResponseUsage | None = None,
        error: ResponseError | None = None,
        incomplete: str | None = None,
        completed_at: int | None = None,
    ) -> None:
        """What it ended with; readers are told by `publish`, so that a response can be kept before anybody knows that
        it is over. A second call does nothing. `incomplete` is the reason of that status."""
        if self._last is not None:
            return
        self._response = msgspec.structs.replace(
            self._response,
            status=status,
            usage=usage or self._usage,
            error=error,
            incomplete_details=None if incomplete is None else IncompleteDetails(incomplete),
            completed_at=completed_at if status == "completed" else None,
        )
        self._last = self._logged(_ENDS[status](response=self.response))

    def publish(self) -> None:
        """Tells the one event that ends it. A second call does nothing."""
        assert self._last is not None, "it has been settled how it ended"
        if self._ended:
            return
        self._ended = True
        if self._keeps_events:
            self._events.append(self._last)
        self._num_events += 1
        self._tell()

    def since(self, starting_after: int = -1) -> list[LoggedEvent]:
        """Every kept event with a higher number than that."""
        return self._events[max(0, starting_after + 1 - self._num_forgotten) :]

    def forget(self, up_to: int) -> None:
        """For a log with one reader: events up to this number are no longer needed."""
        gone = max(0, up_to + 1 - self._num_forgotten)
        del self._events[:gone]
        self._num_forgotten += gone

    def _logged(self, event: ResponseEvent) -> LoggedEvent:
        kind = type(event).__struct_config__.tag
        assert isinstance(kind, str)
        numbered = msgspec.structs.replace(event, sequence_number=self._num_events)
        return LoggedEvent(self._num_events, kind, _ENCODER.encode(numbered))

    def _tell(self) -> None:
        if self._on_event is not None:
            self._on_event()
