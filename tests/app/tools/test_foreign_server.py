"""mcp-server-time, which somebody else has written, as a command whose tools a scripted model calls."""

from __future__ import annotations

import json
import sys

import attrs
import pytest

from app.dialects.dialect import Dialect
from app.factory import create_app
from app.tools.address import ToolAddress, ToolServer
from app.tools.allow_list import AllowedServers
from app.tools.servers import McpServers
from app.tools.sessions import ToolSessions
from tests.helpers.app_under_test import AppUnderTest, make_app

pytestmark = pytest.mark.process

COMMAND = (sys.executable, "-m", "mcp_server_time", "--local-timezone", "Europe/Berlin")
SERVER = {"type": "mcp", "server_label": "time", "require_approval": "never"}


def calling(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': f'time__{name}', 'arguments': arguments})}\n</tool_call>"


async def test_a_server_that_somebody_else_has_written_is_listed_and_called(nursery):
    texts = [
        calling("get_current_time", timezone="Asia/Kathmandu"),
        calling("get_current_time", timezone="Atlantis/Poseidonis"),
        calling("convert_time", source_timezone="Asia/Tokyo", time="12:00", target_timezone="Asia/Kathmandu"),
        "It is late.",
    ]
    app = make_app(dialect=Dialect("hermes"), max_model_len=100_000, reply=lambda prompt, index: texts.pop(0))
    sessions = ToolSessions()
    servers = McpServers(sessions, [ToolServer(ToolAddress("stdio", command=COMMAND), "time")], AllowedServers())
    await nursery.start(sessions.run)
    services = attrs.evolve(app.services, tool_servers=servers)
    app = AppUnderTest(create_app(services), app.engine, services)

    reply = await app.post("/v1/responses", input="How late is it?", tools=[SERVER])

    listing, now, nowhere, converted, message = reply.json["output"]
    assert [tool["name"] for tool in listing["tools"]] == ["get_current_time", "convert_time"]
    assert listing["tools"][0]["annotations"]["readOnlyHint"]
    assert "Europe/Berlin" in listing["tools"][0]["input_schema"]["properties"]["timezone"]["description"]
    assert json.loads(now["output"])["datetime"].endswith("+05:45")
    assert (nowhere["status"], nowhere["error"]["type"]) == ("failed", "mcp_tool_execution_error")
    assert "Atlantis/Poseidonis" in nowhere["error"]["content"][0]["text"]
    assert json.loads(converted["output"])["time_difference"] == "-3.25h"
    assert message["content"][0]["text"] == "It is late."
