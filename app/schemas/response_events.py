"""The events of a response: of streams of POST /v1/responses and of its retrieval. An event's name is its `type`.

Sequence numbers are given by app/responses/event_log.py; whoever makes an event leaves them out.
"""

from __future__ import annotations

import msgspec

from app.schemas.responses import ContentPart, OutputItem, Response, TextLogprob


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int = 0
    """From 0, by one."""


class _OfItem(_Event, frozen=True):
    item_id: str
    output_index: int


class ResponseCreated(_Event, frozen=True, kw_only=True, tag="response.created"):
    response: Response


class ResponseQueued(_Event, frozen=True, kw_only=True, tag="response.queued"):
    response: Response


class ResponseInProgress(_Event, frozen=True, kw_only=True, tag="response.in_progress"):
    response: Response


class ResponseCompleted(_Event, frozen=True, kw_only=True, tag="response.completed"):
    response: Response


class ResponseIncomplete(_Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """Also the end of a response that was cancelled: its status says so, and OpenAI has no event of that name."""

    response: Response


class ErrorEvent(_Event, frozen=True, kw_only=True, tag="error"):
    """The end of a stream whose response is not there any more."""

    code: str
    message: str
    param: str | None = None


class ResponseFailed(_Event, frozen=True, kw_only=True, tag="response.failed"):
    response: Response


class OutputItemAdded(_Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class OutputItemDone(_Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class ContentPartAdded(_OfItem, frozen=True, kw_only=True, tag="response.content_part.added"):
    content_index: int = 0
    part: ContentPart


class ContentPartDone(_OfItem, frozen=True, kw_only=True, tag="response.content_part.done"):
    content_index: int = 0
    part: ContentPart


class OutputTextDelta(_OfItem, frozen=True, kw_only=True, tag="response.output_text.delta"):
    content_index: int = 0
    delta: str
    logprobs: list[TextLogprob] = []


class OutputTextDone(_OfItem, frozen=True, kw_only=True, tag="response.output_text.done"):
    content_index: int = 0
    text: str
    logprobs: list[TextLogprob] = []


class ReasoningTextDelta(_OfItem, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    content_index: int = 0
    delta: str


class ReasoningTextDone(_OfItem, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    content_index: int = 0
    text: str


class FunctionCallArgumentsDelta(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class FunctionCallArgumentsDone(_OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class McpListToolsInProgress(_OfItem, frozen=True, kw_only=True, tag="response.mcp_list_tools.in_progress"):
    pass


class McpListToolsCompleted(_OfItem, frozen=True, kw_only=True, tag="response.mcp_list_tools.completed"):
    pass


class McpListToolsFailed(_OfItem, frozen=True, kw_only=True, tag="response.mcp_list_tools.failed"):
    pass


class McpCallInProgress(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call.in_progress"):
    pass


class McpCallArgumentsDelta(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"):
    delta: str


class McpCallArgumentsDone(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"):
    arguments: str


class McpCallCompleted(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call.completed"):
    pass


class McpCallFailed(_OfItem, frozen=True, kw_only=True, tag="response.mcp_call.failed"):
    pass


TerminalEvent = ResponseCompleted | ResponseIncomplete | ResponseFailed
ResponseEvent = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | TerminalEvent
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpCallArgumentsDelta
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
)
EVENTS = (
    ResponseCreated,
    ResponseQueued,
    ResponseInProgress,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
    ErrorEvent,
    OutputItemAdded,
    OutputItemDone,
    ContentPartAdded,
    ContentPartDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    McpListToolsInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpCallInProgress,
    McpCallArgumentsDelta,
    McpCallArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
)
