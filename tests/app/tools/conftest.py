"""Servers of tools to call: over HTTP in the test's own process, or as processes that can be killed."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio

from app.tools.address import ToolAddress, read_url
from tests.helpers.loopback import serve_on_loopback
from tests.helpers.tool_server import Seen, tool_server

Serve = Callable[..., Awaitable[ToolAddress]]


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the MCP package logs with a traceback is what these tests are about. Its servers do not close all their
    streams, which are collected here, where that is no failure."""
    loggers = [logging.getLogger(name) for name in ("mcp", "httpx2", "httpcore2", "sse_starlette", "uvicorn")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    if "serve" in request.fixturenames:
        gc.collect()


@pytest.fixture
def serve(nursery: trio.Nursery) -> Serve:
    """(transport, seen) to the address of a server in this process."""

    async def serve(transport: str, seen: Seen | None = None, name: str = "tester") -> ToolAddress:
        server = tool_server(seen, name)
        if transport == "sse":
            return read_url(f"http://127.0.0.1:{await serve_on_loopback(server.sse_app(), nursery)}/sse")
        return read_url(f"http://127.0.0.1:{await serve_on_loopback(server.streamable_http_app(), nursery)}/mcp")

    return serve


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Those in it are killed in the end."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


STDIO = ToolAddress("stdio", command=(sys.executable, "-m", "tests.helpers.tool_server"))
