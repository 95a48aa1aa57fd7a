"""MCP servers behind a real `trillm serve`: reached when they can be, let alone when they cannot, and gone with it."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
import trio

from tests.helpers.processes import children, is_gone, wait_until_gone
from tests.helpers.server import open_server

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMAND = f"here=stdio:{sys.executable} {ROOT}/tests/helpers/tool_server.py"
CALL = {"server_label": "here", "name": "add", "arguments": '{"a": 2, "b": 3}'}
CONVERSATION = [
    {"role": "user", "content": "How much is it?"},
    {"type": "mcp_approval_request", "id": "mcpr_1", **CALL},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
]


def descendants(pid: int) -> set[int]:
    """Of the server, with what the tool server's command has started."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found |= {child} | descendants(child)
    return found


async def test_a_command_s_tools_are_called_and_it_ends_with_the_server(checkpoint):
    flags = ("--tool-server", COMMAND, "--tool-server", "away=127.0.0.1:1", "--max-model-len", "4096")
    async with open_server(checkpoint, *flags) as server:
        await server.until_said(re.compile(r"away \(http://127\.0\.0\.1:1/sse\): .*cannot be reached.*tried again"))
        await server.until_said(re.compile(r"--tool-server here \(stdio:\S+\) has 9 tools"))
        commands = descendants(server.pid) - set(children(server.pid).values())
        async with server.client() as http:
            tools = [{"type": "mcp", "server_label": "here", "allowed_tools": ["add"]}]
            body = {"input": CONVERSATION, "tools": tools, "max_output_tokens": 16, "ignore_eos": True, "store": False}
            reply = await http.post("/v1/responses", json=body)
            tools = [{"type": "mcp", "server_label": "other", "server_url": "http://127.0.0.1:1/sse"}]
            refused = await http.post("/v1/responses", json=body | {"tools": tools, "input": "Hi"})
            big = [item | {"name": "big", "arguments": "{}"} for item in CONVERSATION[1:2]]
            tools = [{"type": "mcp", "server_label": "here"}, {"type": "mcp", "server_label": "away"}]
            conversation = [CONVERSATION[0], *big, CONVERSATION[2]]
            long = (await http.post("/v1/responses", json=body | {"input": conversation, "tools": tools})).json()
            metrics = (await http.get("/metrics")).text

    assert reply.status_code == 200, reply.text
    assert [item["type"] for item in reply.json()["output"]][:2] == ["mcp_list_tools", "mcp_call"]
    assert reply.json()["output"][1]["output"] == "5"
    assert refused.status_code == 400
    _, away, call, message = long["output"]
    assert "away: the server cannot be reached" in away["error"]
    assert "127.0.0.1" not in away["error"]
    assert re.search(r"\n\[cut: .* do not fit .* are told\]$", call["output"])
    assert (message["type"], long["status"]) == ("message", "incomplete")  # max_output_tokens
    assert 0 < long["usage"]["input_tokens"] <= 4096 * 3 // 4 + 256
    assert re.search(
        r'^trillm:mcp_calls_total\{.*outcome="completed".*server_label="here".*\} 2\.0$', metrics, re.MULTILINE
    )
    assert re.search(r"^trillm:mcp_sessions\{.*\} 1\.0$", metrics, re.MULTILINE)
    assert re.search(r"^trillm:stored_responses\{.*\} 0\.0$", metrics, re.MULTILINE)
    assert "--allowed-mcp-servers" in refused.json()["error"]["message"]
    with trio.fail_after(10):
        while not all(map(is_gone, commands)):
            await trio.sleep(0.02)
    assert not any("Traceback" in line for line in server.log)


async def test_kill_9_of_the_server_leaves_no_command_nor_what_it_has_started(checkpoint, tmp_path):
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "os.fork()\n"
        "print('stubborn', os.getpid(), file=sys.stderr, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = f"here=stdio:{shlex.join([sys.executable, str(script)])}"

    async with open_server(checkpoint, "--tool-server", command) as server:
        with trio.fail_after(20):
            pids: set[int] = set()
            while len(pids) < 2:
                said = [re.search(r"\bstubborn (\d+)", line) for line in server.log]
                pids = {int(match[1]) for match in said if match}
                await trio.sleep(0.01)
            known = descendants(server.pid)
        assert pids < known
        server.signal(signal.SIGKILL)
        with trio.fail_after(5):
            await wait_until_gone(*known)
