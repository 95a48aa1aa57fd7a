"""What servers of tools do wrong over HTTP costs the call that asked, and neither others nor this server."""

from __future__ import annotations

import json
import re

import pytest
import trio
import trio.testing

from app.tools.address import ToolAddress, read_url
from app.tools.allow_list import AllowedServers
from app.tools.bounded_http import STREAMS_AT_ONCE
from app.tools.session import MAX_ABANDONED
from app.tools.sessions import ToolSessions
from app.tools.tool_error import ToolError
from tests.app.tools.hostile import ABOUT, EVENTS, RESULT, TOOLS, HostileServer, begin, part, result, tell
from tests.helpers.loopback import serve_on_loopback

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),  # httpx2's, of streams that are left
]


@pytest.fixture
async def sessions(nursery):
    sessions = ToolSessions(call_seconds=5, connect_seconds=5)
    await nursery.start(sessions.run)
    return sessions


async def at(server, nursery, path="mcp") -> ToolAddress:
    return read_url(f"http://127.0.0.1:{await serve_on_loopback(server, nursery)}/{path}")


def text(found) -> str:
    return "".join(content.text for content in found.content)


async def cut_stream(asked, send) -> None:
    await tell(send, 200, b"", EVENTS)


async def cut_connection(asked, send) -> None:
    await begin(send, 200, b"application/json", (b"content-length", b"100"))
    raise ConnectionAbortedError


@pytest.mark.parametrize("cut", [cut_stream, cut_connection])
async def test_an_answer_that_breaks_off_costs_its_own_call_only(cut, sessions, nursery):
    slow_begun, slow_may_end = trio.Event(), trio.Event()

    async def call(asked, send):
        if asked["params"]["arguments"]:
            return await cut(asked, send)
        slow_begun.set()
        await slow_may_end.wait()
        await result(asked, send, RESULT)

    address = await at(HostileServer(tools_call=call), nursery)
    told = []

    async def wait() -> None:
        told.append(text(await sessions.call(address, (), "any", {})))

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        await slow_begun.wait()
        with pytest.raises(ToolError) as error:
            await sessions.call(address, (), "any", {"cut": True})
        slow_may_end.set()

    assert told == ["here"]
    assert not error.value.was_not_run
    assert sessions.num_open == 1


async def test_a_call_that_is_being_made_is_not_made_again_when_another_finds_nobody_listening(sessions, nursery):
    """A server that is being replaced ends what it does, and takes no more."""
    begun, may_end = trio.Event(), trio.Event()
    calls = []

    async def handle(stream: trio.SocketStream) -> None:
        asked = await read_request(stream)
        answer = {"initialize": ABOUT, "tools/list": TOOLS, "tools/call": RESULT}.get(asked["method"])
        if asked["method"] == "tools/call":
            calls.append(asked["params"]["arguments"])
            begun.set()
            await may_end.wait()
        content = json.dumps({"jsonrpc": "2.0", "id": asked.get("id", 0), "result": answer or {}}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        await stream.send_all(head % len(content) + content)
        await stream.aclose()

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listening = trio.CancelScope()

    async def listen() -> None:
        with listening:
            await trio.serve_listeners(handle, [listener], handler_nursery=nursery)

    nursery.start_soon(listen)
    address = read_url(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp")
    await sessions.list_tools(address, ())
    told = []

    async def wait() -> None:
        told.append(text(await sessions.call(address, (), "any", {"first": True})))

    async with trio.open_nursery() as waiting:
        waiting.start_soon(wait)
        await begun.wait()
        listening.cancel()
        await listener.aclose()
        with pytest.raises(ToolError, match="cannot be reached") as error:
            await sessions.call(address, (), "any", {})
        may_end.set()

    assert error.value.was_not_run
    assert told == ["here"]
    assert calls == [{"first": True}]


async def read_request(stream: trio.SocketStream) -> dict:
    data = b""
    while True:
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and (length is None or len(body) >= int(length[1])):
            return json.loads(body) if body else {"method": "GET"}
        if not (received := await stream.receive_some()):
            raise trio.BrokenResourceError
        data += received


async def test_calls_that_nobody_waits_for_do_not_use_up_the_connections(sessions, nursery):
    server = HostileServer()
    begun = trio.Event()

    async def never(asked, send):
        if server.num_asked["tools/call"] % MAX_ABANDONED == 0:
            begun.set()
        await trio.sleep_forever()

    server.answers["tools/call"] = never
    address = await at(server, nursery)
    await sessions.list_tools(address, ())

    async with trio.open_nursery() as leaving:
        for _ in range(MAX_ABANDONED):
            leaving.start_soon(sessions.call, address, (), "any", {})
        await begun.wait()
        leaving.cancel_scope.cancel()
    del server.answers["tools/call"]

    assert text(await sessions.call(address, (), "any", {})) == "here"
    assert server.num_asked["initialize"] == 2
    assert server.num_asked["DELETE"] == 1
    assert sessions.num_open == 1


async def test_a_stream_that_ends_at_once_is_not_opened_again_and_again(nursery, sessions):
    async def end_at_once(asked, send):
        await tell(send, 200, b"retry: 0\nid: 1\ndata:\n\n", EVENTS)

    server = HostileServer(GET=end_at_once)
    await sessions.list_tools(await at(server, nursery), ())
    await trio.sleep(0.5)

    assert server.num_asked["GET"] <= STREAMS_AT_ONCE + 1


async def test_redirects_within_the_origin_are_followed(nursery, sessions):
    server = HostileServer()

    async def app(scope, receive, send):
        if scope.get("path") != "/mcp":
            return await server(scope, receive, send)
        while (await receive()).get("more_body"):
            pass
        await tell(send, 307, b"x" * 100, EVENTS, (b"location", b"/mcp/"))

    assert text(await sessions.call(await at(app, nursery), (), "any", {})) == "here"


@pytest.mark.parametrize(
    ("allowed", "target", "is_followed"),
    [
        ("", "/admin", True),
        ("/mcp", "/mcp/", True),
        ("/mcp", "/mcp/other?x=%20", True),
        ("/mcp", "/admin", False),
        ("/mcp", "/mcp2", False),
        ("/mcp", "/mcp/../admin", False),
        ("/mcp", "/mcp/%2e%2e/admin", False),
        ("/mcp", "/mcp/..;/admin", False),
    ],
)
@pytest.mark.parametrize("transport", ["http", "sse redirected", "sse"])
async def test_a_server_that_a_request_brings_leads_nowhere_but_to_what_is_allowed(
    transport, allowed, target, is_followed, nursery, sessions
):
    asked: list[str] = []

    async def app(scope, receive, send):
        assert scope["type"] == "http"
        while (await receive()).get("more_body"):
            pass
        asked.append(scope["path"])
        if scope["path"] != own:
            await tell(send, 418, b"")
        elif transport == "sse":
            await begin(send, 200, EVENTS)
            await part(send, b"event: endpoint\ndata: %b\n\n" % target.encode())
            await trio.sleep_forever()
        else:
            await tell(send, 307, b"", EVENTS, (b"location", target.encode()))

    own = "/mcp/sse" if transport.startswith("sse") else "/mcp"
    address = await at(app, nursery, own[1:])
    address = AllowedServers.of((address.url.removesuffix(own) + allowed,)).address(address.url)

    with pytest.raises(ToolError, match="418" if is_followed else "which this server may not call"):
        await sessions.list_tools(address, ())

    assert set(asked) == {own, *([asked[-1]] if is_followed else [])}
    assert (asked[-1] != own) is is_followed


async def endless(asked, send, status=200, kind=EVENTS, *headers):
    await begin(send, status, kind, *headers)
    for _ in range(40):
        await part(send, b":" + b"x" * 2**20)


async def endless_redirect(asked, send):
    await endless(asked, send, 307, EVENTS, (b"location", b"/mcp/"))


async def many_values(asked, send):
    await tell(send, 200, b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[%s]}}' % (asked["id"], b"{}," * 2**17))


async def many_values_in_an_event(asked, send):
    await tell(send, 200, b'data: {"jsonrpc":"2.0","id":1,"result":{"tools":[%s' % (b"{}," * 2**17), EVENTS)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (endless, "SSE stream ended|larger than 2097152"),
        (endless_redirect, "larger than 2097152"),
        (many_values, "more than 131072 objects"),
        (many_values_in_an_event, "SSE stream ended"),
    ],
)
async def test_a_list_that_would_take_all_memory_or_time_to_read_is_an_error(answer, told, sessions, nursery):
    address = await at(HostileServer(tools_list=answer), nursery)

    with pytest.raises(ToolError, match=told):
        await sessions.list_tools(address, ())

    assert text(await sessions.call(address, (), "any", {})) == "here"


async def test_an_endless_answer_to_what_was_posted_over_the_older_transport_is_an_error(sessions, nursery):
    async def app(scope, receive, send):
        if scope["method"] == "GET":
            await begin(send, 200, EVENTS)
            await part(send, b"event: endpoint\ndata: /messages\n\n")
            return await trio.sleep_forever()
        await endless({}, send)

    with pytest.raises(ToolError, match="larger than 2097152 bytes"):
        await sessions.list_tools(await at(app, nursery, "sse"), ())


async def test_a_server_that_many_wait_for_leaves_room_for_others(nursery):
    sessions = ToolSessions(connect_seconds=1, max_sessions=4, max_sessions_of_one=3)
    await nursery.start(sessions.run)
    silent = [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nowhere = read_url(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp")
    address = await at(HostileServer(), nursery)
    told = []

    async def ask(user: str) -> None:
        with pytest.raises(ToolError) as error:
            await sessions.list_tools(read_url(f"{nowhere.url}?{user}"), ())
        told.append(error.value.message)

    async with trio.open_nursery() as asking:
        for user in "abcd":
            asking.start_soon(ask, user)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert text(await sessions.call(address, (), "any", {})) == "here"
    for each in silent:
        await each.aclose()

    assert "3 sessions with that host or command are open, which is the limit" in told[0]
    assert ["no answer within 1 s" in message for message in told[1:]] == [True] * 3


async def test_what_a_server_says_is_told_on_one_line(sessions, nursery):
    async def fail(asked, send):
        error = {"code": -1, "message": "no\nERROR \x1b[31m this is no line of the log"}
        await tell(send, 200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}).encode())

    with pytest.raises(ToolError, match=r"no ERROR \[31m this is no line"):
        await sessions.call(await at(HostileServer(tools_call=fail), nursery), (), "any", {})
