"""The tools that the server runs itself, as the loop of a response sees them. Implemented by app/tools.

Client functions are none of this: a call of one ends the response, and the client answers it in the next request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from app.responses.builtin_tools import as_server, missing_server
from app.schemas.chat import Tool
from app.schemas.responses import InputItem, McpCallItem, McpListToolsItem, ResponseTool
from app.tool_namespace import ToolNamespace
from protocol.errors import BadRequestError


@frozen
class ServerTool:
    """Where a name that the model was shown leads."""

    server_label: str
    name: str
    """As the server calls it."""
    needs_approval: bool = False


class ToolBox(Protocol):
    """The MCP servers of one response, their tools listed. Nothing has to be closed."""

    @property
    def listings(self) -> Sequence[McpListToolsItem]:
        """To be told once at the beginning: of each server whose list is not yet among the conversation's items. With
        an `error` for one that could not be asked."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """What the model is shown, under names that `find` knows."""
        ...

    @property
    def namespaces(self) -> Sequence[ToolNamespace]:
        """The same by their servers."""
        ...

    @property
    def approved(self) -> Sequence[McpCallItem]:
        """Calls that the client has just allowed, to be made before the model goes on; status in_progress, and
        `approval_request_id` says which request of the conversation it answers."""
        ...

    def find(self, name: str) -> ServerTool | None:
        """None for a client's function, and for a name that the model has made up."""
        ...

    def name_of(self, server_label: str, name: str) -> str:
        """What the model is shown, the other way round; also for a tool that is not there any more."""
        ...

    async def call(self, call: McpCallItem) -> McpCallItem:
        """The same with status completed and its output, or with status failed and an error. Raises nothing that the
        tool or its server is to blame for. Cancelled when the response is."""
        ...


class ToolServers(Protocol):
    """Of one API server. Gives each request its ToolBox."""

    @property
    def labels(self) -> Sequence[str]:
        """Of the servers that the operator names, as far as they are known: requests may ask for these."""
        ...

    async def open(self, tools: Sequence[ResponseTool], items: Sequence[InputItem]) -> ToolBox:
        """`tools`: those of the request. At least one is an MCP server (app/responses/builtin_tools.py), unless `items`
        (the whole conversation, the new input last) has an mcp_approval_response. Raises BadRequestError for a server
        that may not be asked, tools that are allowed and do not exist, or approvals that answer nothing. A server that
        cannot be reached is a listing with an error."""
        ...


class NoToolServers:
    """Without an operator's consent no server is asked anything."""

    labels: Sequence[str] = ()

    async def open(self, tools: Sequence[ResponseTool], items: Sequence[InputItem]) -> ToolBox:
        servers = [(f"tools[{at}]", tool) for at, tool in enumerate(tools) if as_server(tool).type == "mcp"]
        if not servers:
            raise BadRequestError("input has an mcp_approval_response, but tools has no MCP server", param="input")
        at, tool = servers[0]
        if tool.type != "mcp" or tool.server_url is None:
            raise missing_server(tool, at)
        raise BadRequestError(
            f"{at}: the MCP server {(tool.server_label or '')[:64]!r} may not be asked: this server allows none "
            "(--tool-server, --allowed-mcp-servers)",
            param=f"{at}.server_url",
        )
