"""A scripted model that calls tools of real MCP servers over /v1/responses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import attrs
import pytest
import trio
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as ListedByServer
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from trio.testing import wait_all_tasks_blocked

from app.dialects.dialect import Dialect
from app.factory import create_app
from app.responses.background import BackgroundResponses
from app.responses.store import ResponseStore
from app.tools.allow_list import AllowedServers
from app.tools.servers import McpServers
from app.tools.sessions import ToolSessions
from tests.app.tools.network import ONE, Network
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.stored_responses import make_store

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")

EVENT = TypeAdapter(ResponseStreamEvent)


def calling(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': f'one__{name}', 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def make(nursery, network) -> Callable[..., AppUnderTest]:
    """(what the model writes, turn by turn) to an application; the last text is said again and again."""

    def make(*texts: str, call_seconds: float = 60, store: ResponseStore | None = None) -> AppUnderTest:
        script = list(texts)

        def reply(prompt, index) -> str:
            return script.pop(0) if len(script) > 1 else script[0]

        app = make_app(dialect=Dialect("hermes"), max_model_len=100_000, tokens_per_delta=4, reply=reply)
        sessions = ToolSessions(connect=network.connect, call_seconds=call_seconds)
        servers = McpServers(sessions, [], AllowedServers.of((ONE,)), store)
        nursery.start_soon(servers.run)
        services = attrs.evolve(app.services, tool_servers=servers)
        if store is not None:
            services = attrs.evolve(services, response_keeper=store, background=BackgroundResponses(store))
            nursery.start_soon(services.background.run)
        return AppUnderTest(create_app(services), app.engine, services)

    return make


def lying_server(schema, num_tools: int = 1) -> Server:
    async def list_tools(context, params) -> ListToolsResult:
        return ListToolsResult(
            tools=[ListedByServer(name=f"lies{i or ''}", input_schema=schema) for i in range(num_tools)]
        )

    async def call_tool(context, params) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="called")])

    return Server("liar", on_list_tools=list_tools, on_call_tool=call_tool)


def deaf_server(seconds: float = math.inf) -> Server:
    """Lists one tool after a while; whoever calls it waits for ever."""

    async def list_tools(context, params) -> ListToolsResult:
        await trio.sleep(seconds)
        return ListToolsResult(tools=[ListedByServer(name="slow", input_schema={"type": "object"})])

    async def call_tool(context, params) -> CallToolResult:
        await trio.sleep_forever()

    return Server("deaf", on_list_tools=list_tools, on_call_tool=call_tool)


async def respond(app: AppUnderTest, prompt="How much is it?", **fields):
    server = {"type": "mcp", "server_label": "one", "server_url": ONE, "require_approval": "never"}
    server |= fields.pop("server", {})
    reply = await app.post("/v1/responses", input=prompt, tools=[server], **fields)
    assert reply.status_code == 200, reply.text
    Response.model_validate(reply.json)
    return reply.json


def kinds(response) -> list[str]:
    return [item["type"] for item in response["output"]]


def prompts(app: AppUnderTest) -> list[str]:
    return [app.services.tokenizer.decode(list(prompt.prompt_token_ids)) for prompt in app.engine.prompts]


async def test_the_model_calls_a_tool_and_answers_with_what_it_told(make, network):
    app = make(calling("add", a=2, b=3), "It is five.")

    response = await respond(app)

    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    call = response["output"][1]
    assert (call["server_label"], call["name"], call["status"]) == ("one", "add", "completed")
    assert (json.loads(call["arguments"]), call["output"]) == ({"a": 2, "b": 3}, "5")
    assert response["output"][2]["content"][0]["text"] == "It is five."
    assert response["status"] == "completed"
    assert network.seen.calls == ["add"]
    assert len(prompts(app)) == 2


async def test_a_stream_tells_the_list_the_call_and_the_answer_in_events_that_openai_s_client_knows(make):
    app = make(calling("add", a=2, b=3), "It is five.")
    body = {
        "input": "How much?",
        "stream": True,
        "store": False,
        "tools": [{"type": "mcp", "server_label": "one", "server_url": ONE, "require_approval": "never"}],
    }

    reply = await app.post("/v1/responses", **body)
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    for event in events:
        EVENT.validate_python(event)
    told = [event["type"].removeprefix("response.") for event in events]

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [kind for kind in told if kind.startswith("mcp")][:3] == [
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "mcp_call.in_progress",
    ]
    assert told.index("mcp_call_arguments.done") < told.index("mcp_call.completed") < told.index("output_text.done")
    assert told[-1] == "completed"


async def test_the_model_is_told_that_a_tool_failed_and_goes_on(make, network):
    app = make(calling("fail", reason="no"), calling("fail", reason="again"), "I give up.")

    response = await respond(app)

    assert kinds(response) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    assert [item["status"] for item in response["output"][1:3]] == ["failed", "failed"]
    assert response["output"][1]["error"]["type"] == "mcp_tool_execution_error"
    assert response["status"] == "completed"
    assert network.seen.calls == ["fail", "fail"]
    assert "Error executing tool fail" in prompts(app)[-1]


async def test_a_server_that_is_gone_in_a_call_is_a_failed_call(make, network, autojump_clock):
    app = make(calling("slow"), "Too slow.", call_seconds=5)

    response = await respond(app)

    assert "within 5 s" in response["output"][1]["error"]["message"]
    assert kinds(response)[-1] == "message"
    assert network.seen.cancelled == ["slow"]


async def test_no_more_calls_are_made_than_the_request_wants(make, network):
    app = make(calling("add", a=1, b=1) + calling("add", a=2, b=2), calling("add", a=3, b=3), "Enough.")

    response = await respond(app, max_tool_calls=1)

    assert network.seen.calls == ["add"]
    assert kinds(response)[:3] == ["mcp_list_tools", "mcp_call", "mcp_call"]
    assert [item["status"] for item in response["output"][1:3]] == ["completed", "failed"]


async def test_a_model_that_never_stops_calling_is_stopped(make, network):
    app = make(calling("add", a=1, b=1))

    response = await respond(app)

    assert response["status"] in ("completed", "incomplete")
    assert 10 <= len(network.seen.calls) <= 100

    cut = await respond(app, max_output_tokens=200)

    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_call_that_needs_approval_is_made_after_it_and_once(make, network):
    app = make(calling("add", a=2, b=3), "It is five.", "Again?")
    server = {"require_approval": "always"}

    asking = await respond(app, server=server)
    assert kinds(asking) == ["mcp_list_tools", "mcp_approval_request"]
    assert network.seen.calls == []
    answer = {"type": "mcp_approval_response", "approval_request_id": asking["output"][1]["id"], "approve": True}
    conversation = [{"role": "user", "content": "How much?"}, *asking["output"], answer]
    done = await respond(app, conversation, server=server)
    again = await respond(app, conversation, server=server)

    assert kinds(done) == ["mcp_call", "message"]
    assert (done["output"][0]["output"], done["output"][0]["approval_request_id"]) == (
        "5",
        answer["approval_request_id"],
    )
    assert again["output"][0]["status"] == "failed"
    assert network.seen.calls == ["add"]


async def test_an_approval_goes_on_from_a_stored_response_and_what_comes_after_it_from_that(make, network):
    app = make(calling("add", a=2, b=3), "It is five.", "You are welcome.", store=make_store())
    server = {"require_approval": "always"}

    asking = await respond(app, server=server)
    answer = {"type": "mcp_approval_response", "approval_request_id": asking["output"][1]["id"], "approve": True}
    done = await respond(app, [answer], server=server, previous_response_id=asking["id"])
    after = await respond(app, "Thanks", server=server, previous_response_id=done["id"])
    stateless = await app.post("/v1/responses", input="Thanks", previous_response_id=done["id"])
    wrong = {"type": "mcp_approval_response", "approval_request_id": "mcpr_" + "0" * 32, "approve": True}
    reply = await app.post("/v1/responses", input=[wrong], previous_response_id=asking["id"])

    assert kinds(done) == ["mcp_call", "message"]
    assert kinds(after) == ["message"]
    assert stateless.status_code == 200, stateless.text
    assert reply.status_code == 400
    assert network.seen.calls == ["add"]
    assert prompts(app)[2].startswith(prompts(app)[1])


async def test_servers_that_share_a_store_make_an_allowed_call_once(make, network, tmp_path):
    path = tmp_path / "responses.sqlite3"
    server = {"require_approval": "always"}
    app = make(calling("add", a=2, b=3), "It is five.", store=make_store(path))
    asking = await respond(app, server=server)
    answer = {"type": "mcp_approval_response", "approval_request_id": asking["output"][1]["id"], "approve": True}
    again = {"server": server, "previous_response_id": asking["id"]}

    done = await respond(app, [answer], **again)
    other = await respond(make("As you know.", store=make_store(path)), [answer], **again)

    assert done["output"][0]["output"] == "5"
    assert "made already" in other["output"][0]["error"]["message"]
    assert kinds(other) == ["mcp_call", "message"]
    assert network.seen.calls == ["add"]


async def test_a_full_queue_makes_background_responses_wait_and_stops_none_that_has_begun(make, network):
    store = make_store()
    app = make(calling("add", a=2, b=3), "It is five.", store=store)
    app.engine.room = trio.Event()

    response = await respond(app, background=True)
    await wait_all_tasks_blocked()
    refused = await app.post("/v1/responses", input="Hi")
    queued = json.loads((await store.get(response["id"])).response)
    room, app.engine.room = app.engine.room, trio.Event()  # it is full again as soon as one has been let in
    room.set()
    with trio.fail_after(10):
        while app.services.background.feed(response["id"]) is not None:
            await trio.sleep(0.01)
    done = json.loads((await store.get(response["id"])).response)

    assert (refused.status_code, refused.json["error"]["code"]) == (503, "queue_full")
    assert queued["status"] == "queued"
    assert (done["status"], kinds(done)) == ("completed", ["mcp_list_tools", "mcp_call", "message"])


async def test_a_function_that_is_named_as_a_shown_tool_is_refused_with_both_names(make):
    server = {"type": "mcp", "server_label": "one", "server_url": ONE}

    reply = await make("Hi").post("/v1/responses", input="Go", tools=[{"type": "function", "name": "one__add"}, server])

    assert reply.status_code == 400
    assert "the function 'one__add'" in reply.json["error"]["message"]
    assert "the tool 'add' of the MCP server 'one'" in reply.json["error"]["message"]
    assert reply.json["error"]["param"] == "tools[0].name"


async def test_the_time_of_a_request_runs_while_tools_are_listed(make, network, autojump_clock):
    network.servers[ONE] = deaf_server()
    server = {"type": "mcp", "server_label": "one", "server_url": ONE}

    began = trio.current_time()
    reply = await make("Hi").post("/v1/responses", input="Go", tools=[server], timeout=5)

    assert reply.status_code == 504
    assert "within 5 s (its timeout)" in reply.json["error"]["message"]
    assert trio.current_time() - began == pytest.approx(5, abs=0.1)


async def test_the_time_that_listing_took_is_not_given_again(make, network, autojump_clock):
    network.servers[ONE] = deaf_server(seconds=3)
    app = make(calling("slow"), "Too late.")
    began = trio.current_time()
    server = {"type": "mcp", "server_label": "one", "server_url": ONE, "require_approval": "never"}

    reply = await app.post("/v1/responses", input="Go", tools=[server], timeout=5)

    assert (reply.status_code, reply.json["status"]) == (200, "failed")  # the call has begun
    assert "within 5 s (its timeout)" in reply.json["error"]["message"]
    assert trio.current_time() - began == pytest.approx(5, abs=0.1)


async def test_a_refused_call_is_not_made_and_the_model_is_told(make, network):
    app = make(calling("add", a=2, b=3), "Then not.")
    server = {"require_approval": "always"}

    asking = await respond(app, server=server)
    answer = {"type": "mcp_approval_response", "approval_request_id": asking["output"][1]["id"], "approve": False}
    done = await respond(app, [{"role": "user", "content": "How much?"}, *asking["output"], answer], server=server)

    assert kinds(done) == ["message"]
    assert network.seen.calls == []
    assert "not allowed" in prompts(app)[-1]


async def test_an_approval_of_what_nobody_asked_is_refused(make):
    app = make("Hi")
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_unknown", "approve": True}

    reply = await app.post(
        "/v1/responses",
        input=[answer],
        tools=[{"type": "mcp", "server_label": "one", "server_url": ONE}],
    )

    assert reply.status_code == 400
    assert "mcpr_unknown" in reply.json["error"]["message"]


async def test_a_server_that_cannot_be_reached_is_told_and_the_model_answers_without_it(make, network):
    network.servers.clear()

    response = await respond(make("Without tools."))

    assert kinds(response) == ["mcp_list_tools", "message"]
    assert "cannot be reached" in response["output"][0]["error"]


async def test_a_client_that_leaves_during_a_call_has_the_server_told(make, network):
    app = make(calling("slow"), "Never.")
    body = {
        "input": "Go",
        "stream": True,
        "store": False,
        "tools": [{"type": "mcp", "server_label": "one", "server_url": ONE, "require_approval": "never"}],
    }
    lines = [(b"content-type", b"application/json")]
    exchange = Exchange(http_scope("POST", "/v1/responses", lines), json.dumps(body).encode())

    with trio.fail_after(10):
        async with trio.open_nursery() as client:
            client.start_soon(exchange.run, app.app)
            await network.seen.started.wait()
            client.cancel_scope.cancel()
        await network.seen.stopped.wait()

    assert network.seen.cancelled == ["slow"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": 5},
        {"type": "object", "properties": {"a": {"$ref": "http://evil.example/schema"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"not": "an object"},
    ],
)
@pytest.mark.parametrize("tool_choice", ["auto", "required"])
async def test_a_schema_that_lies_costs_at_most_its_own_request(schema, tool_choice, make, network):
    network.servers[ONE] = lying_server(schema)
    app = make(calling("lies"), "Done.")
    server = {"type": "mcp", "server_label": "one", "server_url": ONE, "require_approval": "never"}

    reply = await app.post("/v1/responses", input="Go", tools=[server], tool_choice=tool_choice)

    assert reply.status_code in (200, 400), reply.text


async def test_more_tools_than_a_request_may_have_are_refused_with_the_limit(make, network):
    network.servers[ONE] = lying_server({"type": "object"}, num_tools=200)
    server = {"type": "mcp", "server_label": "one", "server_url": ONE}

    reply = await make("Hi").post("/v1/responses", input="Go", tools=[server])
    fewer = await make("Hi").post("/v1/responses", input="Go", tools=[server | {"allowed_tools": ["lies", "lies7"]}])

    assert reply.status_code == 400
    assert "200" in reply.json["error"]["message"]
    assert fewer.status_code == 200, fewer.text
