from __future__ import annotations

import gzip
import itertools
import json
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import trio
from mcp import MCPError
from mcp.client._memory import InMemoryTransport
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context
from mcp_types import CONNECTION_CLOSED, CallToolResult, JSONRPCRequest, TextContent
from trio.testing import wait_all_tasks_blocked

from app.tools.address import ToolAddress, ToolServer, read_url
from app.tools.allow_list import AllowedServers
from app.tools.servers import McpServers
from app.tools.session import ToolSession
from app.tools.sessions import ToolSessions
from app.tools.tool_error import ToolError
from tests.app.tools.conftest import STDIO
from tests.helpers.loopback import serve_on_loopback
from tests.helpers.ports import lasting_ports
from tests.helpers.tool_server import BIG, Seen, tool_server

pytestmark = [
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),  # httpx2's, of streams that are left
]
HERE = ToolAddress("http", "http://memory/mcp")


def text(result) -> str:
    return "".join(content.text for content in result.content)


class Memory:
    """Connects to a server in memory; counts, and refuses while `is_down`."""

    def __init__(self, seen: Seen | None = None) -> None:
        self.seen = seen
        self.num_connected = 0
        self.num_tries = 0
        self.is_down = False
        self.is_deaf = False

    @asynccontextmanager
    async def connect(self, address, headers, on_failure, on_end):
        self.num_tries += 1
        if self.is_down:
            raise ConnectionRefusedError("nobody is there")
        if self.is_deaf:
            await trio.sleep_forever()
        async with InMemoryTransport(tool_server(self.seen)) as streams:
            self.num_connected += 1
            yield streams


@pytest.fixture
async def sessions(nursery):
    sessions = ToolSessions(call_seconds=5, connect_seconds=10)
    await nursery.start(sessions.run)
    return sessions


async def in_memory(nursery, memory: Memory, **options) -> ToolSessions:
    sessions = ToolSessions(connect=memory.connect, **options)
    await nursery.start(sessions.run)
    return sessions


@pytest.mark.process
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_over_http_lists_its_tools_and_is_called(transport, serve, sessions):
    address = await serve(transport)

    tools = {tool.name: tool for tool in await sessions.list_tools(address, ())}
    result = await sessions.call(address, (), "add", {"a": 2, "b": 3})

    assert tools["add"].description == "Adds two numbers."
    assert tools["add"].is_read_only
    assert tools["add"].input_schema["required"] == ["a", "b"]
    assert not tools["fail"].is_read_only
    assert text(result) == "5"
    assert not result.is_error
    assert await sessions.server_name(address) == "tester"
    assert sessions.num_open == 1


@pytest.mark.process
async def test_a_command_is_a_server_too(sessions):
    assert text(await sessions.call(STDIO, (), "add", {"a": 2, "b": 3})) == "5"


@pytest.mark.process
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_leaving_a_call_tells_the_server_that_nobody_waits(transport, serve, sessions, nursery):
    seen = Seen()
    address = await serve(transport, seen)

    with trio.CancelScope() as call:
        async with trio.open_nursery() as inner:
            inner.start_soon(sessions.call, address, (), "slow", {})
            await seen.started.wait()
            call.cancel()
    with trio.fail_after(5):
        await seen.stopped.wait()

    assert text(await sessions.call(address, (), "add", {"a": 1, "b": 1})) == "2"


@pytest.mark.process
async def test_progress_is_told_while_a_tool_runs(serve, sessions):
    told = []

    async def on_progress(progress, total, message):
        told.append((progress, total, message))

    await sessions.call(await serve("http"), (), "progress", {"steps": 2}, on_progress)

    assert told == [(1, 2, "step 1"), (2, 2, "step 2")]


@pytest.mark.process
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_that_dies_in_a_call_is_an_error_and_is_found_again(transport, sessions, processes):
    [port] = lasting_ports(1)
    address = read_url(f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}")
    command = [sys.executable, "-m", "tests.helpers.tool_server", *(["sse"] if transport == "sse" else []), str(port)]

    async def start() -> None:
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        with trio.fail_after(20):
            while True:
                try:
                    return await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                except OSError:
                    await trio.sleep(0.05)

    async def kill(*_progress: object) -> None:
        processes[-1].kill()

    await start()
    await sessions.list_tools(address, ())
    with pytest.raises(ToolError, match="gone") as error:
        await sessions.call(address, (), "slow", {}, kill)
    processes[-1].wait()
    with pytest.raises(ToolError, match="cannot be reached"):
        await sessions.call(address, (), "add", {"a": 1, "b": 1})
    await start()
    await trio.sleep(0.5)  # for so long it is let alone

    assert not error.value.was_not_run
    assert text(await sessions.call(address, (), "add", {"a": 1, "b": 1})) == "2"


@pytest.mark.process
async def test_ten_megabytes_come_over_http_and_a_lying_schema_harms_nobody(serve, sessions):
    address = await serve("http")
    await sessions.list_tools(address, ())

    assert len(text(await sessions.call(address, (), "big", {}))) == BIG
    assert (await sessions.call(address, (), "liar", {})).is_error  # the server itself found it out


@pytest.mark.process
async def test_ten_megabytes_over_the_older_transport_are_an_error_of_their_call_alone(serve, sessions, nursery):
    seen = Seen()
    address = await serve("sse", seen)
    told = []

    async def wait() -> None:
        told.append(text(await sessions.call(address, (), "slow", {"seconds": 1})))

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        await seen.started.wait()
        with pytest.raises(ToolError, match=r"too large: 1000\d{4} bytes, and at most 1048576 are taken"):
            await sessions.call(address, (), "big", {})
        assert told == []

    assert told == ["at last"]
    assert text(await sessions.call(address, (), "add", {"a": 1, "b": 1})) == "2"
    assert sessions.num_open == 1


@pytest.mark.process
async def test_more_than_is_taken_over_http_is_an_error_of_its_call_alone(serve, sessions):
    seen = Seen()
    address = await serve("http", seen)

    async with trio.open_nursery() as waiting:
        waiting.start_soon(sessions.call, address, (), "slow", {"seconds": 1})
        await seen.started.wait()
        with pytest.raises(ToolError, match="larger than 16777216 bytes"):
            await sessions.call(address, (), "big", {"size": 20_000_000})
        assert seen.cancelled == []

    assert seen.cancelled == []
    assert sessions.num_open == 1


@pytest.mark.process
async def test_ten_megabytes_come_from_a_command_and_more_are_an_error_of_their_call_alone(sessions):
    started = trio.Event()
    told = []

    async def on_progress(*_progress) -> None:
        started.set()

    async def wait() -> None:
        told.append(text(await sessions.call(STDIO, (), "slow", {"seconds": 1.5}, on_progress)))

    assert len(text(await sessions.call(STDIO, (), "big", {}))) == BIG
    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        await started.wait()
        with pytest.raises(ToolError, match=r"too large: 200\d{5} bytes, and at most 16777216 are taken"):
            await sessions.call(STDIO, (), "big", {"size": 20_000_000})

    assert told == ["at last"]
    assert sessions.num_open == 1


@pytest.mark.process
@pytest.mark.parametrize(("status", "headers"), [(401, []), (302, [(b"location", b"http://127.0.0.1:1/mcp")])])
@pytest.mark.parametrize("path", ["mcp", "sse"])
async def test_what_answers_with_another_status_is_an_error_that_tells_it(status, headers, path, sessions, nursery):
    async def app(scope, receive, send):
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"secret"})

    port = await serve_on_loopback(app, nursery)

    with pytest.raises(ToolError, match=str(status)) as error:
        await sessions.list_tools(read_url(f"http://127.0.0.1:{port}/{path}"), (("authorization", "Bearer hidden"),))

    assert "secret" not in str(error.value)
    assert "hidden" not in str(error.value)


@pytest.mark.process
@pytest.mark.parametrize(
    ("header", "complaint"), [((b"content-encoding", b"gzip"), "compressed"), ((b"x", b"y"), "larger than")]
)
async def test_an_answer_without_end_ends_the_session_and_not_the_server(header, complaint, sessions, nursery):
    async def app(scope, receive, send):
        assert scope["type"] == "http"
        headers = [(b"content-type", b"application/json"), header]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(40):
            await send({"type": "http.response.body", "body": gzip.compress(b" ") + b" " * 2**19, "more_body": True})

    port = await serve_on_loopback(app, nursery)

    with pytest.raises(ToolError, match=complaint):
        await sessions.list_tools(read_url(f"http://127.0.0.1:{port}/mcp"), ())


async def test_the_same_headers_are_the_same_session_and_others_another(nursery):
    memory = Memory()
    sessions = await in_memory(nursery, memory)

    for headers in ((), (), (("x", "1"),)):
        await sessions.call(HERE, headers, "add", {"a": 1, "b": 1})

    assert memory.num_connected == sessions.num_open == 2


class Forgetful:
    """A server of the older protocol with sessions in JSON, which forgets them when it is restarted."""

    def __init__(self) -> None:
        self.generation = 0
        self.num_calls = 0

    async def __call__(self, scope, receive, send) -> None:
        assert scope["type"] == "http"
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        given = dict(scope["headers"]).get(b"mcp-session-id")
        if scope["method"] != "POST":
            return await self.answer(send, 405)
        asked = json.loads(body)
        if given is not None and given != self.name:
            return await self.answer(send, 404)
        if "id" not in asked:
            return await self.answer(send, 202)
        match asked["method"]:
            case "initialize":
                about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result = {"result": {**about, "serverInfo": {"name": "forgetful", "version": "1"}}}
            case "tools/call":
                self.num_calls += 1
                result = {"result": {"content": [{"type": "text", "text": "here"}]}}
            case method:
                result = {"error": {"code": -32601, "message": f"no {method}"}}
        await self.answer(send, 200, {"jsonrpc": "2.0", "id": asked["id"], **result})

    @property
    def name(self) -> bytes:
        return b"session-%d" % self.generation

    async def answer(self, send, status: int, content=None) -> None:
        headers = [(b"content-type", b"application/json"), (b"mcp-session-id", self.name)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if content is None else json.dumps(content).encode()})


@pytest.mark.process
async def test_a_server_that_has_forgotten_its_session_is_asked_in_a_new_one(sessions, nursery):
    server = Forgetful()
    address = read_url(f"http://127.0.0.1:{await serve_on_loopback(server, nursery)}/mcp")

    assert text(await sessions.call(address, (), "any", {})) == "here"
    server.generation += 1
    assert text(await sessions.call(address, (), "any", {})) == "here"

    assert server.num_calls == 2
    with pytest.raises(ToolError, match="no tools/list"):
        await sessions.list_tools(address, ())


class OlderProtocol:
    """What the client says, with the newer protocol's first question made one that no server knows."""

    def __init__(self, stream) -> None:
        self.stream = stream

    async def send(self, item) -> None:
        if isinstance(item.message, JSONRPCRequest) and item.message.method == "server/discover":
            item.message.method, item.message.params = "server/unheard-of", None
        await self.stream.send(item)

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error) -> None:
        await self.aclose()


async def test_a_list_that_has_changed_is_asked_for_again(nursery):
    server = tool_server()

    @server.tool()
    async def learn(context: Context) -> str:
        """Gives the server another tool."""
        server.add_tool(lambda: "new", "learnt", description="New.")
        await context.session.send_tool_list_changed()
        return "learnt"

    @asynccontextmanager
    async def connect(address, headers, on_failure, on_end):
        async with InMemoryTransport(server) as (heard, said):
            yield heard, OlderProtocol(said)

    sessions = ToolSessions(connect=connect)
    await nursery.start(sessions.run)
    before = await sessions.list_tools(HERE, ())
    assert await sessions.list_tools(HERE, ()) is before
    await sessions.call(HERE, (), "learn", {})

    assert [tool.name for tool in (await sessions.list_tools(HERE, ()))[len(before) :]] == ["learnt"]


async def test_a_list_is_asked_for_again_after_a_while(nursery, autojump_clock):
    sessions = await in_memory(nursery, Memory())

    before = await sessions.list_tools(HERE, ())
    await trio.sleep(61)

    assert await sessions.list_tools(HERE, ()) is not before


async def test_who_asks_at_once_shares_one_session(nursery):
    memory = Memory()
    sessions = await in_memory(nursery, memory)

    async with trio.open_nursery() as asking:
        for _ in range(5):
            asking.start_soon(sessions.call, HERE, (), "add", {"a": 1, "b": 1})

    assert memory.num_connected == 1


@pytest.mark.process
async def test_more_calls_than_a_session_has_connections_are_all_made(serve, sessions):
    seen = Seen()
    address = await serve("http", seen)

    async with trio.open_nursery() as asking:
        for _ in range(150):
            asking.start_soon(sessions.call, address, (), "add", {"a": 1, "b": 1})

    assert seen.calls == ["add"] * 150


async def test_a_session_that_nobody_uses_ends(nursery, autojump_clock):
    sessions = await in_memory(nursery, Memory(), idle_seconds=60)

    await sessions.call(HERE, (), "slow", {"seconds": 50})
    await trio.sleep(59)
    assert sessions.num_open == 1
    await trio.sleep(5)
    assert sessions.num_open == 0


async def test_a_call_that_takes_too_long_is_an_error_and_the_session_goes_on(nursery, autojump_clock):
    seen = Seen()
    memory = Memory(seen)
    sessions = await in_memory(nursery, memory, call_seconds=10)

    with pytest.raises(ToolError, match="within 10 s"):
        await sessions.call(HERE, (), "slow", {"seconds": 50})
    await sessions.call(HERE, (), "add", {"a": 1, "b": 1})

    assert memory.num_connected == 1
    assert seen.cancelled == ["slow"]


async def test_a_server_that_cannot_be_reached_is_let_alone_longer_each_time(nursery, autojump_clock):
    memory = Memory()
    memory.is_down = True
    sessions = await in_memory(nursery, memory)

    began = trio.current_time()
    tries = []
    while trio.current_time() < began + 60:
        before = memory.num_tries
        with pytest.raises(ToolError, match="nobody is there"):
            await sessions.list_tools(HERE, ())
        if memory.num_tries > before:
            tries.append(trio.current_time() - began)
        await trio.sleep(0.25)
    memory.is_down = False
    await trio.sleep(30)

    assert [round(later - earlier, 1) for earlier, later in itertools.pairwise(tries)] == [
        0.5,
        1,
        2,
        4,
        8,
        16,
    ]
    assert await sessions.list_tools(HERE, ())


async def test_a_server_that_says_nothing_is_given_up(nursery, autojump_clock):
    memory = Memory()
    memory.is_deaf = True
    sessions = await in_memory(nursery, memory, connect_seconds=7)

    with pytest.raises(ToolError, match="no answer within 7 s"):
        await sessions.list_tools(HERE, ())


async def test_the_longest_unused_session_makes_room_and_used_ones_do_not(nursery, autojump_clock):
    seen = Seen()
    sessions = await in_memory(nursery, Memory(seen), max_sessions=2)

    for name in "abc":
        await sessions.call(HERE, (("x", name),), "add", {"a": 1, "b": 1})
        await trio.sleep(1)
    assert sessions.num_open == 2
    async with trio.open_nursery() as asking:
        for name in "bc":
            asking.start_soon(sessions.call, HERE, (("x", name),), "slow", {"seconds": 5})
        await trio.sleep(1)
        with pytest.raises(ToolError, match="2 tool servers are open"):
            await sessions.call(HERE, (("x", "a"),), "add", {"a": 1, "b": 1})


async def of_server(nursery, server: Server, **options) -> ToolSessions:
    @asynccontextmanager
    async def connect(address, headers, on_failure, on_end):
        async with InMemoryTransport(server) as streams:
            yield streams

    sessions = ToolSessions(connect=connect, **options)
    await nursery.start(sessions.run)
    return sessions


async def test_an_error_of_one_call_leaves_the_others_of_its_session_alone(nursery):
    started, answer = trio.Event(), trio.Event()

    async def call(context, params):
        if params.name == "busy":
            raise MCPError(CONNECTION_CLOSED, "the database is busy")  # JSON-RPC leaves this code to servers
        started.set()
        await answer.wait()
        return CallToolResult(content=[TextContent(text="done")])

    sessions = await of_server(nursery, Server("busy", on_call_tool=call))
    told = []

    async def wait() -> None:
        told.append(text(await sessions.call(HERE, (), "slow", {})))

    async with trio.open_nursery() as asking:
        asking.start_soon(wait)
        await started.wait()
        with pytest.raises(ToolError, match="the database is busy"):
            await sessions.call(HERE, (), "busy", {})
        answer.set()

    assert told == ["done"]


async def test_all_who_wait_for_a_list_that_does_not_come_are_told_in_time(nursery, autojump_clock):
    async def list_tools(context, params):
        await trio.sleep_forever()

    sessions = await of_server(nursery, Server("silent", on_list_tools=list_tools), call_seconds=10)
    began = trio.current_time()
    told = []

    async def ask() -> None:
        with pytest.raises(ToolError, match=r"list of tools did not answer within 10 s"):
            await sessions.list_tools(HERE, ())
        told.append(trio.current_time() - began)

    async with trio.open_nursery() as asking:
        for _ in range(5):
            asking.start_soon(ask)

    assert told == [pytest.approx(10)] * 5


class Broken:
    """As a bug of the package's would: what is said fails with an error that nobody expects, from `method` on."""

    def __init__(self, said, method: str) -> None:
        self._said = said
        self._method = method

    async def send(self, item) -> None:
        if item.message.method == self._method:
            raise LookupError("nobody has thought of this")
        await self._said.send(item)

    async def aclose(self) -> None:
        await self._said.aclose()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error) -> None:
        await self.aclose()


@pytest.mark.parametrize("method", ["server/discover", "tools/list", "tools/call"])
async def test_an_error_that_nobody_expects_is_logged_and_costs_that_session_alone(method, nursery, caplog):
    memory = Memory()
    other = ToolAddress("http", "http://other/mcp")

    @asynccontextmanager
    async def connect(address, headers, on_failure, on_end):
        async with memory.connect(address, headers, on_failure, on_end) as (heard, said):
            yield heard, Broken(said, method) if address == HERE else said

    sessions = ToolSessions(connect=connect)
    await nursery.start(sessions.run)
    servers = McpServers(sessions, [ToolServer(HERE, "here"), ToolServer(other, "other")], AllowedServers())
    nursery.start_soon(servers.run)
    await wait_all_tasks_blocked()
    with pytest.raises(ToolError, match="internal error; the server's log has it"):
        await sessions.list_tools(HERE, ())
        await sessions.call(HERE, (), "add", {"a": 2, "b": 3})
    await wait_all_tasks_blocked()

    assert text(await sessions.call(other, (), "add", {"a": 2, "b": 3})) == "5"
    assert sessions.num_connected == 1
    assert any(record.exc_info and "nobody has thought" in caplog.text for record in caplog.records)


async def test_cancelling_who_asks_cancels_nobody_else(nursery):
    memory = Memory()
    sessions = await in_memory(nursery, memory)

    with trio.move_on_after(0.05) as left:
        await sessions.call(HERE, (), "slow", {})

    assert left.cancelled_caught
    assert text(await sessions.call(HERE, (), "add", {"a": 1, "b": 1})) == "2"
    assert memory.num_connected == 1


async def test_who_waits_for_a_session_that_is_ended_is_told(nursery, autojump_clock):
    session = ToolSession(HERE, (), connect_seconds=5, idle_seconds=5, connect=Memory().connect)
    nursery.start_soon(session.run)
    await session.settled.wait()

    async def end_soon() -> None:
        await trio.sleep(1)
        session.end()

    nursery.start_soon(end_soon)
    with pytest.raises(ToolError, match="has ended"):
        await session.call("slow", {}, 60)
