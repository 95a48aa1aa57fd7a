"""The servers of tools that requests may use: those of the operator by their label, others by an allowed URL.

app/responses/tool_box.py's ToolServers; made by app/serving.py when the operator names or allows any.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import final

import trio

from app.responses.tool_box import ToolBox
from app.schemas.responses import InputItem, ResponseTool
from app.tools.address import LABEL, MAX_LABEL_LENGTH, ToolAddress, ToolServer
from app.tools.allow_list import AllowedServers
from app.tools.approvals import ApprovalsInMemory, UsedApprovals, allowed_calls
from app.tools.box import McpToolBox
from app.tools.call_counts import FROM_REQUEST, CallCounts
from app.tools.request_headers import request_headers
from app.tools.sessions import ToolSessions
from app.tools.tool_error import ToolError
from app.tools.tool_filter import check_filters
from app.tools.tool_set import AskedServer, Listing
from protocol.errors import BadRequestError

logger = logging.getLogger("trillm.tools")

MAX_SERVERS = 16
"""In one request."""


@final
class McpServers:
    """`run` it while requests are taken."""

    def __init__(
        self,
        sessions: ToolSessions,
        named: Sequence[ToolServer],
        allowed: AllowedServers,
        used: UsedApprovals | None = None,
    ) -> None:
        """`used`: the store of responses, if there is one."""
        self._sessions = sessions
        self._allowed = allowed
        self._used = used or ApprovalsInMemory()
        self.counts = CallCounts()
        self._unlabelled = [server.address for server in named if server.label is None]
        """Of those that have not told their name yet."""
        self._by_label = {server.label: server.address for server in named if server.label is not None}
        for label in (*self._by_label, *([FROM_REQUEST] if allowed.prefixes else [])):
            self.counts.add_label(label)

    @property
    def num_sessions(self) -> int:
        """Those that are connected."""
        return self._sessions.num_connected

    async def run(self) -> None:
        """Until cancelled. Servers that cannot be reached are told of in the log, and tried again when needed."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._sessions.run)
            for address in (*self._by_label.values(), *self._unlabelled):
                nursery.start_soon(self._greet, address)

    async def _greet(self, address: ToolAddress) -> None:
        try:
            tools = await self._sessions.list_tools(address, ())
            await self._learn_name(address)
        except ToolError as error:
            logger.warning("--tool-server %s: %s; it is tried again when it is needed", address, error.message)
            return
        except Exception as error:  # nobody waits for this task: it would end the server
            logger.error("--tool-server %s could not be asked for its tools", address, exc_info=error)
            return
        label = next((label for label, known in self._by_label.items() if known == address), None)
        logger.info("--tool-server %s has %d tools, under the label %s", address, len(tools), label)

    async def _learn_name(self, address: ToolAddress) -> None:
        """Of a server that the operator gave no label: what it calls itself."""
        if address not in self._unlabelled:
            return
        name = await self._sessions.server_name(address)
        if address not in self._unlabelled:
            return  # somebody else has learnt it meanwhile
        if not LABEL.fullmatch(name) or name in self._by_label:
            taken = "is taken" if name in self._by_label else "is no label"
            raise ToolError(f"it calls itself {name[:64]!r}, which {taken}: give it one (label=URL)")
        self._unlabelled.remove(address)
        self._by_label[name] = address
        self.counts.add_label(name)

    async def open(self, tools: Sequence[ResponseTool], items: Sequence[InputItem]) -> ToolBox:
        if len(tools) > MAX_SERVERS:
            raise BadRequestError(f"tools has {len(tools)} MCP servers; at most {MAX_SERVERS} are taken", param="tools")
        servers = [await self._checked(tool, f"tools: MCP server {at}") for at, tool in enumerate(tools)]
        labels = [server.label for server in servers]
        for label in labels:
            if labels.count(label) > 1:
                raise BadRequestError(f"tools has two MCP servers with the server_label {label!r}", param="tools")
        allowed = allowed_calls(items)
        for item in allowed:
            if item.server_label not in labels:
                raise BadRequestError(
                    f"input allows a call of the MCP server {(item.server_label or '')[:64]!r}, which tools has not",
                    param="tools",
                )
        return McpToolBox(self._sessions, self._used, self.counts, await self._list(servers), items, allowed)

    async def _checked(self, tool: ResponseTool, at: str) -> AskedServer:
        """Raises BadRequestError."""
        label = tool.server_label or ""
        if not LABEL.fullmatch(label):
            raise BadRequestError(
                f"{at}: server_label must be letters, digits, - and _, {MAX_LABEL_LENGTH} at most and a letter first, "
                f"not {label[:MAX_LABEL_LENGTH]!r}",
                param="tools",
            )
        try:
            check_filters(tool, at)
            if tool.connector_id is not None:
                raise BadRequestError("connector_id is not supported: there are no connectors here, only server_url")
            address = await self._address(tool, label)
            headers = request_headers(tool.headers or {}, tool.authorization)
        except BadRequestError as error:
            raise BadRequestError(f"{at} ({label}): {error.message}", param=error.param or "tools") from error
        if headers and address.transport == "stdio":
            raise BadRequestError(f"{at} ({label}) is a command, which takes no headers", param="tools")
        return AskedServer(tool, address, headers)

    async def _address(self, tool: ResponseTool, label: str) -> ToolAddress:
        if tool.server_url is not None:
            return self._allowed.address(tool.server_url)
        if label not in self._by_label and self._unlabelled:
            await self._learn_names()
        if label not in self._by_label:
            raise BadRequestError(
                f"server_url is missing, and --tool-server has no server of that label ({label}=URL gives it one)"
            )
        return self._by_label[label]

    async def _learn_names(self) -> None:
        """Of all that have none yet and can be reached by now."""

        async def learn(address: ToolAddress) -> None:
            try:
                await self._learn_name(address)
            except ToolError as error:
                logger.debug("--tool-server %s: %s", address, error.message)

        async with trio.open_nursery() as nursery:
            for address in self._unlabelled:
                nursery.start_soon(learn, address)

    async def _list(self, servers: Sequence[AskedServer]) -> list[Listing]:
        """All at once, in their order."""
        listings: dict[int, Listing] = {}

        async def ask(at: int, server: AskedServer) -> None:
            try:
                tools = await self._sessions.list_tools(server.address, server.headers)
                instructions = self._sessions.instructions(server.address, server.headers)
                listings[at] = Listing.of(server, tools, instructions)
            except ToolError as error:
                listings[at] = Listing(server, error=error.message)

        async with trio.open_nursery() as nursery:
            for at, server in enumerate(servers):
                nursery.start_soon(ask, at, server)
        return [listings[at] for at in range(len(servers))]
