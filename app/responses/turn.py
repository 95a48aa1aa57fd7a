"""One generation of a response: what the model says, thinks and calls, as items and their events in OpenAI's order.

Pure, over the event log. What comes next either belongs to the item that is open, or ends it and opens another one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from attrs import define, field

from app.parts import CallPiece, ChoiceReader, Content, Part, Reasoning
from app.responses.ended_item import ended_item
from app.responses.event_log import EventLog
from app.responses.item_ids import item_id
from app.responses.text_logprobs import text_logprobs
from app.responses.tool_box import ServerTool
from app.schemas.response_events import (
    ContentPartAdded,
    FunctionCallArgumentsDelta,
    McpCallArgumentsDelta,
    McpCallArgumentsDone,
    McpCallFailed,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    ReasoningTextDelta,
)
from app.schemas.responses import (
    FunctionCallItem,
    ItemStatus,
    McpApprovalRequestItem,
    McpCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    TextLogprob,
)
from protocol.messages import FinishReason, PositionLogprobs, RequestOutput

_OpenItem = MessageItem | ReasoningItem | FunctionCallItem | McpCallItem | McpApprovalRequestItem


@define
class _Open:
    """The item that is being told."""

    item: _OpenItem
    """As it began: empty."""
    index: int
    texts: list[str] = field(factory=list)
    logprobs: list[TextLogprob] = field(factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def takes(self, part: Part) -> bool:
        match part:
            case Reasoning():
                return isinstance(self.item, ReasoningItem)
            case Content():
                return isinstance(self.item, MessageItem)
            case CallPiece():
                return part.id is None and not isinstance(self.item, MessageItem | ReasoningItem)


@define
class Called:
    """A call of an MCP tool that the model has written whole."""

    item: McpCallItem
    index: int
    """Of the item in the output."""


class Turn:
    """Of one generation with one choice."""

    def __init__(
        self,
        log: EventLog,
        reader: ChoiceReader,
        find: Callable[[str], ServerTool | None],
        *,
        tells_logprobs: bool = False,
    ) -> None:
        """`find` says of a name whether it leads to an MCP server."""
        self._log = log
        self._reader = reader
        self._find = find
        self._tells_logprobs = tells_logprobs
        self._open: _Open | None = None
        self._has_begun = False
        self._held_logprobs: list[PositionLogprobs] = []
        """Of tokens whose text has not been told yet."""
        self.finish_reason: str | None = None
        """None until the generation has ended."""
        self._to_make: list[Called] = []
        self.waits_for_client = False
        """Whether the model has called a function of the client's, or a tool that the client has to allow."""

    @property
    def num_reasoning_tokens(self) -> int:
        return self._reader.num_reasoning_tokens

    @property
    def is_cut(self) -> bool:
        """Whether the model would have gone on."""
        return self.finish_reason == FinishReason.LENGTH

    def take_calls(self) -> list[Called]:
        """Calls that the server makes, each once; their items are open."""
        taken, self._to_make = self._to_make, []
        return taken

    def feed(self, output: RequestOutput) -> None:
        """The next piece. The one with a finish reason ends the last item."""
        parts = self._reader.feed(output)
        if self._tells_logprobs and output.logprobs:
            self._held_logprobs += output.logprobs
        for part in parts:
            self._add(part)
        if output.finish_reason is not None:
            self.finish_reason = self._reader.finish_reason(output.finish_reason)
            if not self._has_begun:
                self._add(Content(""))  # an answer of nothing is an answer
            self._close("incomplete" if self.is_cut else "completed")

    def abandon(self) -> None:
        """It ends here, with what has been told."""
        self._close("incomplete")

    def _add(self, part: Part) -> None:
        if self._open is None or not self._open.takes(part):
            self._close("completed")
            self._open = self._opened(part)
        opened = self._open
        where = opened.item.id, opened.index
        logprobs, self._held_logprobs = self._held_logprobs, []
        match part:
            case Content(text):
                told = text_logprobs(logprobs)
                opened.logprobs += told
                if text:
                    self._log.append(OutputTextDelta(*where, delta=text, logprobs=told))
            case Reasoning(text):
                self._log.append(ReasoningTextDelta(*where, delta=text))
            case CallPiece(arguments=text):
                if text and isinstance(opened.item, FunctionCallItem):
                    self._log.append(FunctionCallArgumentsDelta(*where, delta=text))
                elif text and isinstance(opened.item, McpCallItem):
                    self._log.append(McpCallArgumentsDelta(*where, delta=text))
        opened.texts.append(text)

    def _opened(self, part: Part) -> _Open:
        self._has_begun = True
        item = self._begun(part)
        opened = _Open(item, len(self._log.items))
        if isinstance(item, McpApprovalRequestItem):  # told whole, when its arguments are
            return opened
        self._log.append(OutputItemAdded(output_index=opened.index, item=item))
        where = item.id, opened.index
        if isinstance(item, MessageItem):
            self._log.append(ContentPartAdded(*where, part=OutputText("")))
        elif isinstance(item, ReasoningItem):
            self._log.append(ContentPartAdded(*where, part=ReasoningText("")))
        elif isinstance(item, McpCallItem):
            self._log.append(McpCallInProgress(*where))
        return opened

    def _begun(self, part: Part) -> _OpenItem:
        match part:
            case Content():
                return MessageItem(id=item_id("message"), status="in_progress")
            case Reasoning():
                return ReasoningItem(id=item_id("reasoning"), status="in_progress")
            case CallPiece():
                assert part.id is not None, "a call's first piece has its id"
                assert part.name is not None, "and its name"
                return self._begun_call(part.id, part.name)

    def _begun_call(self, call_id: str, name: str) -> _OpenItem:
        tool = self._find(name)
        if tool is None:
            return FunctionCallItem(
                id=item_id("function_call"), call_id=call_id, name=name, arguments="", status="in_progress"
            )
        if tool.needs_approval:
            return McpApprovalRequestItem(
                id=item_id("mcp_approval_request"), server_label=tool.server_label, name=tool.name, arguments=""
            )
        return McpCallItem(
            id=item_id("mcp_call"), server_label=tool.server_label, name=tool.name, arguments="", status="in_progress"
        )

    def _close(self, status: ItemStatus) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        item, index, text = opened.item, opened.index, opened.text
        where = item.id, index
        match item:
            case MessageItem() | ReasoningItem() | FunctionCallItem():
                ended, events = ended_item(item, index, status, text, opened.logprobs)
                for event in events:
                    self._log.append(event)
                self._done(index, ended)
                self.waits_for_client = self.waits_for_client or isinstance(item, FunctionCallItem)
            case McpApprovalRequestItem():
                if status == "completed":
                    whole = msgspec.structs.replace(item, arguments=text)
                    self._log.append(OutputItemAdded(output_index=index, item=whole))
                    self._done(index, whole)
                    self.waits_for_client = True
            case McpCallItem():
                self._log.append(McpCallArgumentsDone(*where, arguments=text))
                called = msgspec.structs.replace(item, arguments=text)
                if status == "completed":
                    self._to_make.append(Called(called, index))
                else:
                    self._log.append(McpCallFailed(*where))
                    self._done(index, msgspec.structs.replace(called, status="incomplete"))

    def _done(self, index: int, item: OutputItem) -> None:
        self._log.append(OutputItemDone(output_index=index, item=item))
