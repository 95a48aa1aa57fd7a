"""The example of tools as the guide writes it: it says what the guide says that it does."""

from __future__ import annotations

import os
import re
import sys

import pytest
import trio

from app.checkpoints.default_model import FILE
from app.settings import default_cache_directory
from app.tools.address import read_tool_servers
from app.tools.result_text import result_text
from app.tools.sessions import ToolSessions
from tests.helpers.pages import GUIDE, ROOT, Block, blocks
from tests.helpers.server import LISTENING, READY, open_process, open_server

pytestmark = pytest.mark.process

NOTES = f"{sys.executable} {ROOT}/scripts/examples/notes.py"
ASKED = "Allow it? [y/n] "


def page() -> list[Block]:
    return blocks(GUIDE / "tools.md")


def command(beginning: str) -> list[str]:
    """One of the page's, for a shell in the checkout."""
    written = [line for block in page() if block.language == "sh" for line in block.text.splitlines()]
    line = next(line for line in written if line.startswith(beginning))
    python = sys.executable
    line = line.replace(".venv/bin/python", python).replace("scripts/serve", f"{python} -m app.cli serve")
    return ["sh", "-c", f"cd {ROOT} && exec {line}"]


def without_chance(lines: list[str]) -> list[str]:
    """The words that the model searches with may be others on another machine; ids are never the same."""
    return [re.sub(r"\{.*\}", "{}", re.sub(r"resp_\w+", "resp_", line)) for line in lines]


@pytest.mark.model
async def test_the_example_of_tools_prints_what_the_guide_says():
    if not (default_cache_directory() / "default" / FILE).is_file():
        pytest.skip("the default model is not in the cache: any start of the server fetches it")
    async with open_process(command("scripts/serve"), TRILLM_PORT="0") as server:
        url = (await server.until_said(LISTENING))[1]
        await server.until_said(READY)
        environment = os.environ | {"OPENAI_BASE_URL": f"{url}/v1"}
        with trio.fail_after(30):
            example = await trio.run_process(
                command(".venv/bin/python scripts/"), stdin=b"y\n", capture_stdout=True, env=environment
            )
    told = example.stdout.decode().replace(ASKED, f"{ASKED}y\n").splitlines()
    [printed] = [block.text for block in page() if block.language == "text"]

    assert without_chance(told) == without_chance(printed.splitlines())
    assert not any("Traceback" in line for line in server.log)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [(["--help"], 0, "Three requests"), ([], 1, "No server answers at http://127.0.0.1:9/v1/ (OPENAI_BASE_URL)")],
)
async def test_the_example_says_how_it_is_used_and_what_is_missing(arguments, status, text):
    example = await trio.run_process(
        [sys.executable, f"{ROOT}/scripts/examples/ask_notes.py", *arguments],
        env=os.environ | {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
        stdin=b"",
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert example.returncode == status
    assert text in (example.stdout + example.stderr).decode()
    assert b"Traceback" not in example.stderr


async def test_the_notes_are_reached_over_both_transports_of_http(checkpoint):
    async with (
        open_process([*NOTES.split(" "), "--port", "0"]) as notes,
        open_process([*NOTES.split(" "), "--port", "0", "--sse"]) as older,
    ):
        running = re.compile(r"running on http://(127\.0\.0\.1:\d+)")
        here = [(await server.until_said(running))[1] for server in (notes, older)]
        flags = ("--tool-server", f"notes=http://{here[0]}/mcp", "--tool-server", f"older={here[1]}")
        async with open_server(checkpoint, *flags) as server:
            await server.until_said(re.compile(r"--tool-server notes \(http://\S+/mcp\) has 2 tools"))
            await server.until_said(re.compile(r"--tool-server older \(http://\S+/sse\) has 2 tools"))


async def test_the_server_of_one_s_own_that_the_guide_shows_is_called(tmp_path):
    [code] = [block.text for block in page() if block.label == "dice.py"]
    (tmp_path / "dice.py").write_text(code)
    [server] = read_tool_servers((f"dice=stdio:{sys.executable} {tmp_path}/dice.py",))
    sessions = ToolSessions()
    async with trio.open_nursery() as nursery:
        await nursery.start(sessions.run)
        [tool] = await sessions.list_tools(server.address, ())
        result = await sessions.call(server.address, (), tool.name, {"sides": 2})
        nursery.cancel_scope.cancel()
    assert (tool.name, tool.description) == ("roll", "Rolls a die.")
    assert result_text(result) in ("1", "2")
