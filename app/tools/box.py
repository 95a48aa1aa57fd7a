"""The tools of one response, called for the model: app/responses/tool_box.py's ToolBox over MCP sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import msgspec

from app.responses.item_ids import item_id
from app.responses.tool_box import ServerTool
from app.schemas.chat import Tool
from app.schemas.responses import InputItem, McpCallItem, McpListToolsItem, McpProtocolError, text_error
from app.tool_namespace import ToolNamespace
from app.tools.approvals import UsedApprovals, may_be_made
from app.tools.call_counts import CallCounts
from app.tools.result_text import result_text
from app.tools.sessions import ToolSessions
from app.tools.tool_error import ToolError
from app.tools.tool_set import Listing, ToolSet
from protocol.errors import UnavailableError

INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
"""JSON-RPC's codes."""
MAX_ARGUMENTS_LENGTH = 2**20


@final
class McpToolBox:
    """Made by app/tools/servers.py, which has listed the tools."""

    def __init__(
        self,
        sessions: ToolSessions,
        used: UsedApprovals,
        counts: CallCounts,
        listings: Sequence[Listing],
        items: Sequence[InputItem],
        allowed: Sequence[InputItem],
    ) -> None:
        """`items`: the conversation. `allowed`: its approval requests whose calls are to be made now."""
        self._sessions = sessions
        self._used = used
        self._counts = counts
        self._set = ToolSet(listings)
        self._tools = list(self._set.shown())
        self._namespaces = list(self._set.namespaces())
        self._listings = [item for listing in listings if (item := _to_tell(listing, items))]
        self._approved = [
            McpCallItem(
                id=item_id("mcp_call"),
                server_label=item.server_label or "",
                name=item.name or "",
                arguments=item.arguments or "",
                status="in_progress",
                approval_request_id=item.id,
            )
            for item in allowed
        ]

    @property
    def listings(self) -> Sequence[McpListToolsItem]:
        return self._listings

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    @property
    def namespaces(self) -> Sequence[ToolNamespace]:
        return self._namespaces

    @property
    def approved(self) -> Sequence[McpCallItem]:
        return self._approved

    def find(self, name: str) -> ServerTool | None:
        return self._set.find(name)

    def name_of(self, server_label: str, name: str) -> str:
        return self._set.name_of(server_label, name)

    async def call(self, call: McpCallItem) -> McpCallItem:
        server = self._set.server_of(call.server_label, call.name)
        if server is None:
            return _failed(
                call, INVALID_PARAMS, f"{call.server_label} has no tool {call.name[:80]!r} that may be called"
            )
        arguments = _arguments(call.arguments)
        if arguments is None:
            return _failed(call, INVALID_PARAMS, "the arguments are no JSON object")
        if call.approval_request_id is not None:
            try:
                if not await may_be_made(call.approval_request_id, self._used):
                    return _failed(call, INVALID_PARAMS, "this call was allowed once, and has been made already")
            except UnavailableError as error:
                message = f"this call was not made: whether it has been before cannot be told ({error.message})"
                return _failed(call, INTERNAL_ERROR, message)
        with self._counts.counted(server.counted_as) as ending:
            try:
                result = await self._sessions.call(server.address, server.headers, call.name, arguments)
                if result.result_type != "complete":
                    raise ToolError(f"the tool answers {result.result_type[:64]!r}, which is no end of a call here")
            except ToolError as error:
                ending.outcome = "timed_out" if error.timed_out else "failed"
                return _failed(call, INTERNAL_ERROR, server.told(error))
            ending.outcome = "failed" if result.is_error else "completed"
        text = result_text(result)
        if result.is_error:
            return msgspec.structs.replace(call, status="failed", error=text_error(text))
        return msgspec.structs.replace(call, status="completed", output=text)


def _to_tell(listing: Listing, items: Sequence[InputItem]) -> McpListToolsItem | None:
    """None: the conversation has it already."""
    label = listing.server.label
    has_it = any(item.type == "mcp_list_tools" and item.server_label == label and not item.error for item in items)
    if has_it and listing.error is None:
        return None
    return McpListToolsItem(
        id=item_id("mcp_list_tools"), server_label=label, tools=listing.listed(), error=listing.error
    )


def _arguments(text: str) -> dict[str, Any] | None:
    """None: they are no JSON object. A model writes nothing at all for a tool without parameters."""
    if len(text) > MAX_ARGUMENTS_LENGTH:
        return None
    try:
        return msgspec.json.decode(text.strip() or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _failed(call: McpCallItem, code: int, message: str) -> McpCallItem:
    return msgspec.structs.replace(call, status="failed", error=McpProtocolError(code, message))
