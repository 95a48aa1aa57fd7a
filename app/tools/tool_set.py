"""The servers and tools of one response: what a name that the model was shown leads to. Pure, once they are listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from app.responses.tool_box import ServerTool
from app.responses.tool_names import numbered, shown_name
from app.schemas.chat import FunctionDefinition, Tool
from app.schemas.responses import ListedTool, ResponseTool
from app.tool_namespace import ToolNamespace, text_parameter
from app.tools.address import ToolAddress
from app.tools.call_counts import FROM_REQUEST
from app.tools.mcp_tool import McpTool
from app.tools.request_headers import Headers
from app.tools.tool_error import ToolError
from app.tools.tool_filter import is_allowed, needs_approval


@frozen
class AskedServer:
    """One of a request's `tools`, checked."""

    request: ResponseTool
    address: ToolAddress
    headers: Headers
    at: str = "tools[0]"
    """Where in the request it is."""

    @property
    def label(self) -> str:
        return self.request.server_label or ""

    @property
    def counted_as(self) -> str:
        """The label if the operator has given it: a request may bring any."""
        return self.label if self.request.server_url is None else FROM_REQUEST

    def told(self, error: ToolError) -> str:
        """As clients and the model read it: by the label."""
        return f"{self.label}: {self.address.hidden_in(error.message)}"


@frozen
class Listing:
    """What a server said that it has; or why it said nothing."""

    server: AskedServer
    tools: tuple[McpTool, ...] = ()
    """Those that the request allows."""
    error: str | None = None
    instructions: str = ""
    """What it says of them together."""

    @classmethod
    def of(cls, server: AskedServer, tools: Sequence[McpTool], instructions: str = "") -> Listing:
        allowed = tuple(tool for tool in tools if is_allowed(tool, server.request))
        return cls(server, allowed, instructions=instructions)

    def listed(self) -> list[ListedTool]:
        return [
            ListedTool(
                name=tool.name,
                input_schema=tool.input_schema,
                description=tool.description or None,
                annotations=tool.annotations,
            )
            for tool in self.tools
        ]


class ToolSet:
    """Each tool under a name of its own. What a server lists twice is one tool."""

    def __init__(self, listings: Sequence[Listing]) -> None:
        self._by_name: dict[str, tuple[AskedServer, McpTool]] = {}
        self._instructions = {listing.server.label: listing.instructions for listing in listings}
        self._names: dict[tuple[str, str], str] = {}
        """By label and the server's own name."""
        for listing in listings:
            for tool in listing.tools:
                key = (listing.server.label, tool.name)
                if key not in self._names:
                    name = self._names[key] = numbered(shown_name(*key), self._by_name)
                    self._by_name[name] = (listing.server, tool)

    def find(self, name: str) -> ServerTool | None:
        if (found := self._by_name.get(name)) is None:
            return None
        server, tool = found
        return ServerTool(server.label, tool.name, needs_approval(tool, server.request))

    def name_of(self, label: str, name: str) -> str:
        """Also for what is not there any more: a conversation may have calls of it."""
        return self._names.get((label, name)) or shown_name(label, name)

    def server_of(self, label: str, name: str) -> AskedServer | None:
        """None: no server of that label has that tool, or the request does not allow it."""
        shown = self._names.get((label, name))
        return None if shown is None else self._by_name[shown][0]

    def namespaces(self) -> Iterator[ToolNamespace]:
        """Of all servers that have a tool here."""
        tools: dict[str, dict[str, McpTool]] = {}
        for name, (server, tool) in self._by_name.items():
            tools.setdefault(server.label, {})[name] = tool
        for label, shown in tools.items():
            yield ToolNamespace(
                label,
                {name: tool.name for name, tool in shown.items()},
                self._instructions[label] or None,
                text_parameter=text_parameter([tool.input_schema for tool in shown.values()]),
            )

    def shown(self) -> Iterator[Tool]:
        for name, (_, tool) in self._by_name.items():
            yield Tool("function", FunctionDefinition(name, tool.description or None, tool.input_schema))
