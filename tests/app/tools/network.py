"""Servers of tools by their URLs, in memory; what is not among them cannot be reached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.client._memory import InMemoryTransport

from app.tools.address import ToolAddress
from tests.helpers.tool_server import Seen, tool_server

ONE, TWO = "http://one.example/mcp", "http://two.example/mcp"
NAMED = ToolAddress("http", "http://named.example/mcp")


class Network:
    def __init__(self) -> None:
        self.seen = Seen()
        self.servers = {url: tool_server(self.seen) for url in (ONE, TWO, NAMED.url)}
        self.headers: list[tuple[tuple[str, str], ...]] = []

    @asynccontextmanager
    async def connect(self, address, headers, on_failure, on_end) -> AsyncIterator:
        self.headers.append(headers)
        if address.url not in self.servers:
            raise ConnectionRefusedError("nobody is there")
        async with InMemoryTransport(self.servers[address.url]) as streams:
            yield streams
