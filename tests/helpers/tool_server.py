"""A real MCP server with tools of every kind: served inside a test over HTTP, or as a process over stdin and stdout.

As a process: `python -m tests.helpers.tool_server` speaks over stdin and stdout, with a port over Streamable HTTP, and
with `sse PORT` over the older transport.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import anyio
from attrs import define, field
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

BIG = 10_000_000


@define
class Seen:
    """What the tools have been asked."""

    calls: list[str] = field(factory=list)
    metas: list[dict[str, Any]] = field(factory=list)
    """What came along with calls of `add`."""
    cancelled: list[str] = field(factory=list)
    started: anyio.Event = field(factory=anyio.Event)
    """The slow tool has begun."""
    stopped: anyio.Event = field(factory=anyio.Event)
    """The slow tool was left."""


def tool_server(seen: Seen | None = None, name: str = "tester") -> MCPServer:
    seen = seen or Seen()
    server = MCPServer(name, instructions="Tools of every kind.", log_level="CRITICAL")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def add(a: Annotated[int, Field(description="one")], b: int, context: Context) -> CallToolResult:
        """Adds two numbers."""
        seen.calls.append("add")
        seen.metas.append(dict(context.request_context.meta or {}))
        return CallToolResult(content=[TextContent(type="text", text=str(a + b))])

    @server.tool()
    async def fail(reason: str) -> str:
        """Always fails."""
        seen.calls.append("fail")
        raise ValueError(reason)

    @server.tool()
    async def slow(context: Context, seconds: float = 60) -> str:
        """Tells that it has begun, and takes its time."""
        seen.calls.append("slow")
        await context.report_progress(0, 1)
        seen.started.set()
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            seen.cancelled.append("slow")
            seen.stopped.set()
            raise
        return "at last"

    @server.tool()
    async def progress(steps: int, context: Context) -> str:
        """Tells how far it is."""
        for step in range(steps):
            await context.report_progress(step + 1, steps, f"step {step + 1}")
        return "done"

    @server.tool(structured_output=False)
    async def big(size: int = BIG) -> str:
        """Ten megabytes, or as many as are wanted."""
        return "x" * size

    @server.tool(structured_output=False)
    async def picture() -> Any:
        """Shows a picture."""
        return Image(data=b"not really a picture", format="png")

    @server.tool()
    async def facts() -> CallToolResult:
        """Answers with structure, and no text."""
        return CallToolResult(content=[], structured_content={"answer": 42})

    @server.tool()
    async def nothing() -> CallToolResult:
        """Answers nothing at all."""
        return CallToolResult(content=[])

    @server.tool()
    async def liar() -> Annotated[CallToolResult, dict[str, int]]:
        """Does not keep to what it says it answers."""
        return CallToolResult(content=[TextContent(type="text", text="a lie")], structured_content={"answer": "no"})

    return server


def main(arguments: list[str]) -> None:
    server = tool_server()
    match arguments:
        case []:
            server.run("stdio")
        case [port]:
            server.run("streamable-http", port=int(port))
        case ["sse", port]:
            server.run("sse", port=int(port))


if __name__ == "__main__":
    main(sys.argv[1:])
