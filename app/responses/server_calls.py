"""The calls of one response that the server makes: counted, made at the same time, and told in the model's order. Used
by run.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec
import trio

from app.deadline import Deadline, within
from app.responses.event_log import EventLog
from app.responses.result_room import fitted
from app.responses.tool_box import ToolBox
from app.responses.turn import Called
from app.schemas.response_events import (
    McpCallArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    OutputItemAdded,
    OutputItemDone,
)
from app.schemas.responses import McpCallItem, McpListToolsItem, McpProtocolError, text_error
from app.tokenizer import Tokenizer
from app.tracing.request_trace import traced_tool_call

logger = logging.getLogger("trillm.responses")

CALLS_AT_ONCE = 16
"""Of one response; far fewer than a session with a server makes at once, so that one response holds up no other."""
INTERNAL_ERROR = -32603
"""JSON-RPC's code."""


class ServerCalls:
    """Of one response. A call beyond `most` is not made, which the model is told as its result."""

    def __init__(
        self,
        log: EventLog,
        box: ToolBox | None,
        most: int | None,
        deadline: Deadline | None,
        tokenizer: Tokenizer,
        *,
        at_once: int,
    ) -> None:
        """`at_once`: how many calls are made at the same time."""
        self._log = log
        self._box = box
        self._most = most
        self._deadline = deadline
        self._tokenizer = tokenizer
        self._at_once = at_once
        self._num_made = 0
        self._open: list[Called] = []
        """Written whole, and not told how they ended."""
        self._results: dict[int, McpCallItem] = {}
        """By index: of those of them that have ended before one that the model has written earlier."""
        self._num_result_tokens = 0

    @property
    def may_go_on(self) -> bool:
        """Whether there may be more calls than those that are made or open."""
        return self._most is None or self._num_made + len(self._open) < self._most

    def tell_listings(self) -> None:
        for listing in [] if self._box is None else self._box.listings:
            self._tell_listing(listing, len(self._log.items))

    def _tell_listing(self, listing: McpListToolsItem, index: int) -> None:
        empty = msgspec.structs.replace(listing, tools=[], error=None)
        self._log.append(OutputItemAdded(output_index=index, item=empty))
        self._log.append(McpListToolsInProgress(listing.id, index))
        kind = McpListToolsCompleted if listing.error is None else McpListToolsFailed
        self._log.append(kind(listing.id, index))
        self._log.append(OutputItemDone(output_index=index, item=listing))

    def add(self, calls: Sequence[Called]) -> None:
        """Calls whose items are open."""
        self._open += calls

    def add_approved(self, calls: Sequence[McpCallItem]) -> None:
        """Calls that the client has allowed: the model has written them in an earlier response."""
        for call in calls:
            index = len(self._log.items)
            self._log.append(OutputItemAdded(output_index=index, item=call))
            self._log.append(McpCallInProgress(call.id, index))
            self._log.append(McpCallArgumentsDone(call.id, index, arguments=call.arguments))
            self._open.append(Called(call, index))

    async def make(self, room: int) -> None:
        """All that are open. `room`: tokens that their results may have together; each is cut to an equal part of it.
        Raises DeadlineError."""
        calls = iter(list(self._open))
        most = room // max(1, len(self._open))
        with within(self._deadline):
            async with trio.open_nursery() as nursery:
                for _ in range(min(self._at_once, len(self._open))):
                    nursery.start_soon(self._make_next, calls, most)

    def take_num_result_tokens(self) -> int:
        """Of the results since the last time, which the model is about to read."""
        taken, self._num_result_tokens = self._num_result_tokens, 0
        return taken

    def abandon(self) -> None:
        """Ends those that are open where they are."""
        for called in self._open:
            unmade = msgspec.structs.replace(called.item, status="incomplete")
            self._tell(called, self._results.pop(called.index, unmade))
        self._open = []

    async def _make_next(self, calls: Iterator[Called], most: int) -> None:
        """One after the other, of those that nobody else makes."""
        for called in calls:
            result = await fitted(await self._result(called.item), most, self._tokenizer)
            self._num_result_tokens += result.num_tokens
            self._results[called.index] = result.call
            while self._open and self._open[0].index in self._results:
                first = self._open.pop(0)
                self._tell(first, self._results.pop(first.index))

    async def _result(self, call: McpCallItem) -> McpCallItem:
        assert self._box is not None, "only a tool box has such calls"
        if self._most is not None and self._num_made >= self._most:
            refusal = text_error(f"This call was not made: max_tool_calls is {self._most}")
            return msgspec.structs.replace(call, status="failed", error=refusal)
        self._num_made += 1
        try:
            with traced_tool_call(call.server_label, call.name) as span:
                called = await self._box.call(call)
                if called.status == "failed":
                    span.failed("tool_error")
                return called
        except Exception as error:  # a bug of ours: it costs none of the calls that are made at the same time
            logger.error("a call of a tool of %s failed", call.server_label, exc_info=error)
            told = McpProtocolError(INTERNAL_ERROR, "Internal error; the server's log has it")
            return msgspec.structs.replace(call, status="failed", error=told)

    def _tell(self, called: Called, result: McpCallItem) -> None:
        kind = McpCallCompleted if result.status == "completed" else McpCallFailed
        self._log.append(kind(result.id, called.index))
        self._log.append(OutputItemDone(output_index=called.index, item=result))
