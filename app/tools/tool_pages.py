"""A server's list of tools, page by page and within bounds. Used by app/tools/session.py."""

from __future__ import annotations

from mcp.client.session import ClientSession
from mcp_types import ListToolsResult, PaginatedRequestParams, Tool

from app.tools.mcp_tool import MAX_LISTING_BYTES, MAX_PAGES, MAX_TOOLS, McpTool
from app.tools.tool_error import ToolError


async def all_tools(session: ClientSession) -> tuple[McpTool, ...]:
    """Raises ToolError for more than our bounds, and what the session raises."""
    tools: list[McpTool] = []
    size = 0
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page: ListToolsResult = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        for tool in map(_mcp_tool, page.tools):
            tools.append(tool)
            size += tool.size
            if len(tools) > MAX_TOOLS or size > MAX_LISTING_BYTES:
                raise ToolError(f"the server lists more than {MAX_TOOLS} tools or {MAX_LISTING_BYTES} bytes of them")
        if not page.next_cursor or page.next_cursor == cursor:
            return tuple(tools)
        cursor = page.next_cursor
    raise ToolError(f"the server lists its tools in more than {MAX_PAGES} pages")


def _mcp_tool(tool: Tool) -> McpTool:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    return McpTool(tool.name, tool.description or "", tool.input_schema, annotations)
