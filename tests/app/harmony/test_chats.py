"""gpt-oss over HTTP: a scripted model that writes Harmony's tokens, with openai-harmony on both sides of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from mcp.server.mcpserver import MCPServer
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from app.dialects.dialect import Dialect
from app.factory import create_app
from app.tools.address import ToolAddress, ToolServer
from app.tools.allow_list import AllowedServers
from app.tools.servers import McpServers
from app.tools.sessions import ToolSessions
from tests.app.test_dialects import message_of
from tests.app.tools.network import NAMED, ONE, Network
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.harmony_vocabulary import gpt_oss, gpt_oss_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")

EVENT = TypeAdapter(ResponseStreamEvent)
THOUGHT = "<|channel|>analysis<|message|>Ask the tool.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
ADD = '<|channel|>commentary to=one.add <|constrain|>json<|message|>{"a": 2, "b": 3}<|call|>'
FINAL = "<|channel|>final<|message|>It is five.<|return|>"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def writing(*texts: str, **engine: Any) -> AppUnderTest:
    """What the model writes, prompt by prompt; the last text is said again and again."""
    script = list(texts)

    def reply(prompt: Any, index: int) -> str:
        return script.pop(0) if len(script) > 1 else script[0]

    tokenizer = gpt_oss_tokenizer()
    dialect = Dialect("openai", "openai_gptoss", frozenset(tokenizer.special_tokens))
    made = make_app(dialect=dialect, tokenizer=tokenizer, max_model_len=20_000, reply=reply, **engine)
    services = attrs.evolve(made.services, harmony=gpt_oss(), template=gpt_oss().template)
    return AppUnderTest(create_app(services), made.engine, services)


def prompts(under_test: AppUnderTest) -> list[str]:
    return [gpt_oss_tokenizer().decode(list(prompt.prompt_token_ids)) for prompt in under_test.engine.prompts]


@pytest.mark.parametrize("tokens_per_delta", [1, 3, 1000])
@pytest.mark.parametrize("stream", [True, False])
async def test_thoughts_and_a_call_of_a_function_are_told_apart(stream: bool, tokens_per_delta: int) -> None:
    under_test = writing(THOUGHT + CALL, tokens_per_delta=tokens_per_delta)
    message, reason, usage = await message_of(under_test, stream=stream, tools=TOOLS, reasoning_effort="low")
    call = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert message == {"content": None, "reasoning": "Ask the tool.", "tool_calls": [call]}
    assert reason == "tool_calls"
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 4
    [prompt] = prompts(under_test)
    assert "namespace functions {\n\ntype weather = " in prompt
    assert "Reasoning: low" in prompt
    assert under_test.engine.prompts[0].sampling_params.skip_special_tokens


async def test_the_result_of_a_call_is_answered() -> None:
    under_test = writing(FINAL)
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "reasoning": "Ask the tool.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Rain."},
    ]
    message, reason, _ = await message_of(under_test, stream=False, messages=messages, tools=TOOLS)
    assert (message["content"], reason) == ("It is five.", "stop")
    [prompt] = prompts(under_test)
    assert "<|channel|>analysis<|message|>Ask the tool.<|end|><|start|>assistant to=functions.weather" in prompt
    assert prompt.endswith(
        "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>Rain.<|end|><|start|>assistant"
    )


async def test_tools_that_may_not_be_called_are_neither_shown_nor_read() -> None:
    under_test = writing(CALL)
    message, reason, _ = await message_of(under_test, stream=False, tools=TOOLS, tool_choice="none")
    assert (message["content"], message["tool_calls"], reason) == ('{"city": "Oslo"}', [], "stop")
    assert "weather" not in prompts(under_test)[0]


async def test_tokenize_renders_as_chats_do() -> None:
    under_test = writing(FINAL)
    reply = await under_test.post("/tokenize", messages=[{"role": "user", "content": "Hi <|end|>"}])
    text = gpt_oss_tokenizer().decode(reply.json["tokens"])
    assert text.endswith("<|start|>user<|message|>Hi <|end|><|end|><|start|>assistant")
    assert reply.json["tokens"].count(200_007) == 2  # of the system's and of the user's message


async def test_an_effort_that_does_not_exist_is_a_400_that_names_it() -> None:
    reply = await writing(FINAL).chat("Hi", reasoning_effort="huge")
    assert reply.status_code == 400
    assert reply.json["error"]["param"] == "reasoning_effort"


async def test_messages_of_the_other_api_are_harmony_too() -> None:
    under_test = writing(THOUGHT + FINAL)
    reply = await under_test.post(
        "/v1/messages", model="alias", max_tokens=100, messages=[{"role": "user", "content": "Hi"}]
    )
    assert [block["type"] for block in reply.json["content"]] == ["thinking", "text"]
    assert reply.json["content"][1]["text"] == "It is five."


# ---------------------------------------------------------------------- tools of MCP servers


PYTHON = ToolAddress("http", "http://python.example/mcp")


@pytest.fixture
def network() -> Network:
    network = Network()
    python = MCPServer("python", log_level="CRITICAL")

    @python.tool(structured_output=False)
    async def run(code: str) -> str:
        """Runs code."""
        return f"ran {code!r}"

    network.servers[PYTHON.url] = python
    return network


@pytest.fixture
def make(nursery: Any, network: Network) -> Callable[..., AppUnderTest]:
    def make(*texts: str) -> AppUnderTest:
        under_test = writing(*texts, tokens_per_delta=4)
        sessions = ToolSessions(connect=network.connect, call_seconds=60)
        named = [ToolServer(NAMED, "browser"), ToolServer(PYTHON, "python")]
        servers = McpServers(sessions, named, AllowedServers.of((ONE,)))
        nursery.start_soon(servers.run)
        services = attrs.evolve(under_test.services, tool_servers=servers)
        return AppUnderTest(create_app(services), under_test.engine, services)

    return make


SERVER = {"type": "mcp", "server_label": "one", "server_url": ONE, "require_approval": "never"}


async def test_the_model_calls_a_tool_in_its_server_s_namespace_and_answers(make: Any, network: Network) -> None:
    under_test = make(THOUGHT + ADD, FINAL)
    reply = await under_test.post("/v1/responses", input="How much?", tools=[SERVER], reasoning={"effort": "high"})
    assert reply.status_code == 200, reply.text
    Response.model_validate(reply.json)
    listing, thoughts, call, message = reply.json["output"]
    assert listing["type"] == "mcp_list_tools"
    assert thoughts["content"][0]["text"] == "Ask the tool."
    assert (call["type"], call["server_label"], call["name"]) == ("mcp_call", "one", "add")
    assert (json.loads(call["arguments"]), call["output"]) == ({"a": 2, "b": 3}, "5")
    assert message["content"][0]["text"] == "It is five."
    assert reply.json["usage"]["output_tokens_details"]["reasoning_tokens"] == 4
    assert network.seen.calls == ["add"]
    first, second = prompts(under_test)
    assert "## one\n\n// Tools of every kind.\nnamespace one {\n\n// Adds two numbers.\ntype add = (_: {\n" in first
    assert "one__add" not in first + second
    assert (
        second
        == first
        + THOUGHT
        + ADD.replace("<|channel|>commentary to=one.add <|constrain|>json", " to=one.add<|channel|>commentary json")
        + "<|start|>one.add to=assistant<|channel|>commentary<|message|>5<|end|><|start|>assistant"
    )


async def test_a_stream_of_such_a_response_has_events_that_openai_s_client_knows(make: Any) -> None:
    reply = await make(THOUGHT + ADD, FINAL).post("/v1/responses", input="?", stream=True, tools=[SERVER])
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    for event in events:
        EVENT.validate_python(event)
    told = [event["type"].removeprefix("response.") for event in events]
    order = ["reasoning_text.done", "mcp_call_arguments.done", "mcp_call.completed", "output_text.done", "completed"]
    assert sorted(order, key=told.index) == order


async def test_the_code_interpreter_is_the_python_server_and_is_sent_code_only(make: Any) -> None:
    code = '<|channel|>analysis to=python code<|message|>print("é")<|call|>'
    under_test = make(THOUGHT + code, FINAL)
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    reply = await under_test.post("/v1/responses", input="How much?", tools=[tool])
    Response.model_validate(reply.json)
    call = next(item for item in reply.json["output"] if item["type"] == "mcp_call")
    assert json.loads(call["arguments"]) == {"code": 'print("é")'}
    assert call["output"] == "ran 'print(\"é\")'"
    assert reply.json["tools"] == [tool]
    first, second = prompts(under_test)
    assert "# Tools\n\n## python\n\nRuns code.\n\n# Valid channels" in first
    assert 'to=python<|channel|>analysis code<|message|>print("é")<|call|><|start|>python to=assistant' in second


async def test_web_search_is_the_browser_server(make: Any, network: Network) -> None:
    under_test = make(ADD.replace("one.add", "browser.add"), FINAL)
    reply = await under_test.post("/v1/responses", input="How much?", tools=[{"type": "web_search_preview"}])
    assert next(item for item in reply.json["output"] if item["type"] == "mcp_call")["output"] == "5"
    system = prompts(under_test)[0].split("<|end|>")[0]
    assert "// Tools of every kind.\nnamespace browser {\n" in system


async def test_without_such_a_server_the_refusal_names_the_flag() -> None:
    for tool in ({"type": "web_search"}, {"type": "code_interpreter", "container": "c"}):
        reply = await writing(FINAL).post("/v1/responses", input="?", tools=[tool])
        assert reply.status_code == 400
        assert "--tool-server" in reply.json["error"]["message"]
        assert tool["type"] in reply.json["error"]["message"]
        assert reply.json["error"]["param"] == "tools[0]"
