"""The servers of tools that requests may use: those of the operator by their label, others by an allowed URL.

app/responses/tool_box.py's ToolServers; made by app/service.py when the operator names or allows any.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import final

import trio

from app.counted import counted
from app.responses.builtin_tools import as_server, missing_server
from app.responses.tool_box import ToolBox
from app.schemas.responses import InputItem, ResponseTool
from app.tools.address import LABEL, MAX_LABEL_LENGTH, ToolAddress, ToolServer
from app.tools.allow_list import AllowedServers
from app.tools.approvals import ApprovalsInMemory, UsedApprovals, allowed_calls
from app.tools.box import McpToolBox
from app.tools.call_counts import FROM_REQUEST, CallCounts
from app.tools.mcp_tool import McpTool
from app.tools.request_headers import request_headers
from app.tools.sessions import ToolSessions
from app.tools.tool_error import ToolError
from app.tools.tool_filter import check_allowed, check_filters
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
    def labels(self) -> Sequence[str]:
        return list(self._by_label)

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
            message = "--tool-server %s: %s; it is tried again when it is needed"
            logger.warning(message, self._named(address), error.message)
            return
        except Exception as error:  # nobody waits for this task: it would end the server
            logger.error("--tool-server %s could not be asked for its tools", self._named(address), exc_info=error)
            return
        logger.info("--tool-server %s has %s", self._named(address), counted(len(tools), "tool"))

    def _named(self, address: ToolAddress) -> str:
        """For the log. Clients are told the label only."""
        label = next((label for label, known in self._by_label.items() if known == address), None)
        return str(address) if label is None else f"{label} ({address})"

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
        asked = [(at, tool) for at, tool in enumerate(tools) if as_server(tool).type == "mcp"]
        if len(asked) > MAX_SERVERS:
            raise BadRequestError(f"tools has {len(asked)} MCP servers; at most {MAX_SERVERS} are taken", param="tools")
        servers = [await self._checked(tool, f"tools[{at}]") for at, tool in asked]
        labels = [server.label for server in servers]
        for number, server in enumerate(servers):
            if server.label in labels[:number]:
                raise BadRequestError(
                    f"{server.at}.server_label is that of {servers[labels.index(server.label)].at}: tools has two MCP "
                    f"servers with the label {server.label!r}",
                    param=f"{server.at}.server_label",
                )
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
        server = as_server(tool)
        label = server.server_label or ""
        if not LABEL.fullmatch(label):
            raise BadRequestError(
                f"{at}.server_label must be letters, digits, - and _, {MAX_LABEL_LENGTH} at most and a letter first, "
                f"not {label[:MAX_LABEL_LENGTH]!r}",
                param=f"{at}.server_label",
            )
        check_filters(server, at)
        if server.connector_id is not None:
            raise BadRequestError(
                f"{at}.connector_id is not supported: there are no connectors here, only server_url",
                param=f"{at}.connector_id",
            )
        address = await self._address(tool, label, at)
        try:
            headers = request_headers(server.headers or {}, server.authorization)
        except BadRequestError as error:
            raise BadRequestError(f"{at} ({label}): {error.message}", param=f"{at}.headers") from error
        if headers and address.transport == "stdio":
            raise BadRequestError(f"{at} ({label}) is a command, which takes no headers", param=f"{at}.headers")
        return AskedServer(server, address, headers, at)

    async def _address(self, tool: ResponseTool, label: str, at: str) -> ToolAddress:
        if tool.server_url is not None and tool.type == "mcp":
            try:
                return self._allowed.address(tool.server_url)
            except BadRequestError as error:
                message = f"{at}.server_url ({label}): {error.message}"
                raise BadRequestError(message, param=f"{at}.server_url") from error
        if label not in self._by_label and self._unlabelled:
            await self._learn_names()
        if label not in self._by_label:
            raise missing_server(tool, at)
        return self._by_label[label]

    async def _learn_names(self) -> None:
        """Of all that have none yet and can be reached by now."""

        async def learn(address: ToolAddress) -> None:
            try:
                await self._learn_name(address)
            except ToolError as error:
                logger.debug("--tool-server %s: %s", self._named(address), error.message)

        async with trio.open_nursery() as nursery:
            for address in self._unlabelled:
                nursery.start_soon(learn, address)

    async def _list(self, servers: Sequence[AskedServer]) -> list[Listing]:
        """All at once, in their order. Raises BadRequestError for tools that are allowed and do not exist."""
        listings: dict[int, Listing] = {}
        known: dict[int, Sequence[McpTool]] = {}

        async def ask(at: int, server: AskedServer) -> None:
            try:
                tools = await self._sessions.list_tools(server.address, server.headers)
                instructions = self._sessions.instructions(server.address, server.headers)
                known[at], listings[at] = tools, Listing.of(server, tools, instructions)
            except ToolError as error:
                listings[at] = Listing(server, error=server.told(error))

        async with trio.open_nursery() as nursery:
            for at, server in enumerate(servers):
                nursery.start_soon(ask, at, server)
        for at, tools in known.items():
            check_allowed(servers[at].request, tools, servers[at].at)
        return [listings[at] for at in range(len(servers))]
