"""OpenAI's client and openai-agents with an MCP server that we call for them; the model is scripted."""

from __future__ import annotations

import agents
import anyio
import attrs
import openai
import pytest
import trio

from app.dialects.dialect import Dialect
from app.factory import create_app
from app.tools.allow_list import AllowedServers
from app.tools.servers import McpServers
from app.tools.sessions import ToolSessions
from tests.app.tools.network import ONE, Network
from tests.clients.client_code import SECONDS, run_client
from tests.helpers.app_under_test import MODEL, make_app
from tests.helpers.loopback import serve_on_loopback

pytestmark = [pytest.mark.clients, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

CALL = '<tool_call>\n{"name": "one__add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
TOOL = {"type": "mcp", "server_label": "one", "server_url": ONE}


async def serve(network: Network, nursery: trio.Nursery) -> str:
    """The base URL of a server whose model calls a tool, and then tells the result."""
    script = [CALL, "It is five."]
    app = make_app(
        dialect=Dialect("hermes"), max_model_len=100_000, tokens_per_delta=4, reply=lambda prompt, index: script.pop(0)
    )
    servers = McpServers(ToolSessions(connect=network.connect), [], AllowedServers.of((ONE,)))
    nursery.start_soon(servers.run)
    services = attrs.evolve(app.services, tool_servers=servers)
    return f"http://127.0.0.1:{await serve_on_loopback(create_app(services), nursery)}/v1"


async def test_a_stream_of_openai_s_client_has_the_list_the_call_and_the_answer(nursery):
    network = Network()
    url = await serve(network, nursery)

    def run():
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=SECONDS) as client:
            tools = [TOOL | {"require_approval": "never"}]
            with client.responses.stream(model=MODEL, input="How much?", tools=tools, store=False) as stream:
                kinds = [event.type for event in stream]
                return kinds, stream.get_final_response()

    kinds, response = await run_client(run)

    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert response.output[1].output == "5"
    assert response.output_text == "It is five."
    assert "response.mcp_call_arguments.delta" in kinds
    assert network.seen.calls == ["add"]


@pytest.mark.parametrize("approve", [True, False])
async def test_an_agent_is_asked_for_its_approval_and_goes_on(approve, nursery):
    network = Network()
    url = await serve(network, nursery)
    asked = []

    def answer(request: agents.MCPToolApprovalRequest) -> agents.MCPToolApprovalFunctionResult:
        asked.append((request.data.name, request.data.arguments))
        return {"approve": approve}

    async def ask() -> agents.result.RunResult:
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, timeout=SECONDS) as client:
            tool = agents.HostedMCPTool(tool_config=TOOL | {"require_approval": "always"}, on_approval_request=answer)
            agent = agents.Agent("Sums", tools=[tool], model=agents.OpenAIResponsesModel(MODEL, client))
            return await agents.Runner.run(
                agent, "How much?", run_config=agents.RunConfig(tracing_disabled=True), max_turns=3
            )

    result = await run_client(lambda: anyio.run(ask, backend="asyncio"))

    assert result.final_output == "It is five."
    assert asked == [("add", '{"a": 2, "b": 3}')]
    assert network.seen.calls == (["add"] if approve else [])
