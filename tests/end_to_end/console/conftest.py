"""One browser and two servers for all tests of the console: starting them takes longer than most of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.server import open_server
from tests.helpers.threaded_server import ThreadedServer, in_thread

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEP_SECONDS = "0.01"
"""Long enough for a test to come between two steps of one answer."""

KEY = "a-key-that-nobody-tells"
SECOND_KEY = "ein Schlüssel"
ROOT_PATH = "/llm"

MCP_SERVER = """
from typing import Literal
from mcp.server.mcpserver import MCPServer
server = MCPServer("signals", log_level="CRITICAL")
@server.tool()
async def hoist(flag: Literal["red", "blue"]) -> str:
    return f"The {flag} flag flies."
server.run("stdio")
"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    from tests.helpers.browser import open_browser  # it skips where playwright is missing

    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="package")
def served(checkpoint: Path) -> Iterator[ThreadedServer]:
    """It needs no key."""
    with in_thread(open_server(checkpoint, "--dummy-step-seconds", STEP_SECONDS)) as opened:
        yield opened


@pytest.fixture(scope="package")
def locked(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServer]:
    """It has two keys, a path prefix, and a server of tools."""
    script = tmp_path_factory.mktemp("tools") / "signals.py"
    script.write_text(MCP_SERVER)
    keys = ("--api-key", KEY, "--api-key", SECOND_KEY)
    tools = ("--tool-server", f"signals=stdio:{sys.executable} {script}")
    with in_thread(open_server(checkpoint, *keys, *tools, "--root-path", ROOT_PATH)) as opened:
        yield opened


@pytest.fixture(scope="package")
def run(browser: Browser, served: ThreadedServer) -> Iterator[Callable[..., Any]]:
    """Runs a function of JavaScript beside the console's modules: `await load("words.js")` is one of them."""
    from tests.helpers.browser import open_page

    with open_page(browser, f"{served.url}/version", expected="favicon") as page:
        page.evaluate("(base) => { window.load = (name) => import(`${base}/console/${name}`); }", served.url)
        yield page.evaluate
