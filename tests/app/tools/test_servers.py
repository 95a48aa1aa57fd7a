from __future__ import annotations

import json

import msgspec
import pytest
import trio
import trio.testing
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as ListedByServer

from app.responses.history import told_to_model
from app.responses.input_items import as_input
from app.schemas.responses import InputItem, McpApproval, McpCallItem, McpToolFilter, ResponseTool
from app.tools.address import ToolAddress, ToolServer
from app.tools.allow_list import AllowedServers
from app.tools.result_text import MAX_RESULT_LENGTH
from app.tools.servers import McpServers
from app.tools.sessions import ToolSessions
from protocol.errors import BadRequestError
from tests.app.tools.network import NAMED, ONE, TWO, Network
from tests.helpers.stored_responses import Disk, make_store
from tests.helpers.tool_server import BIG

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")

REQUEST = "mcpr_" + "0" * 32


@pytest.fixture
def network():
    return Network()


@pytest.fixture
async def servers(nursery, network):
    sessions = ToolSessions(connect=network.connect)
    servers = McpServers(sessions, [ToolServer(NAMED)], AllowedServers.of((f"{ONE},{TWO},http://gone.example",)))
    nursery.start_soon(servers.run)
    await trio.testing.wait_all_tasks_blocked()
    return servers


def asked(label="one", url=ONE, **fields) -> ResponseTool:
    return ResponseTool(type="mcp", server_label=label, server_url=url, **{"require_approval": "never", **fields})


def call(name, arguments="{}", label="one", **fields) -> McpCallItem:
    return McpCallItem(id="mcp_1", server_label=label, name=name, arguments=arguments, status="in_progress", **fields)


def names(box) -> list[str]:
    return [tool.function.name for tool in box.tools]


async def test_tools_of_servers_are_shown_under_their_labels_and_called(servers):
    box = await servers.open([asked(), asked("two", TWO, allowed_tools=["add"])], [])

    assert names(box)[0] == "one__add"
    assert names(box)[-1] == "two__add"
    assert [(item.server_label, len(item.tools)) for item in box.listings] == [("one", 9), ("two", 1)]
    assert box.listings[0].tools[0].annotations == {"readOnlyHint": True}
    assert (box.find("two__add").server_label, box.find("two__add").name) == ("two", "add")
    assert box.find("two__fail") is box.find("add") is None

    done = await box.call(call("add", '{"a": 1, "b": 2}', "two"))

    assert (done.status, done.output, done.error) == ("completed", "3", None)


async def test_tools_that_would_be_shown_under_one_name_are_numbered_and_both_called(servers, network):
    network.servers[ONE], network.servers[TWO] = naming_server("b__tool"), naming_server("tool", "tool")
    box = await servers.open([asked("a"), asked("a__b", TWO)], [])

    assert names(box) == ["a__b__tool", "a__b__tool_2"]
    assert [(box.find(name).server_label, box.find(name).name) for name in names(box)] == [
        *(("a", "b__tool"), ("a__b", "tool"))
    ]
    assert (box.name_of("a__b", "tool"), box.name_of("a__b", "gone")) == ("a__b__tool_2", "a__b__gone")
    assert (await box.call(call("b__tool", label="a"))).output == "b__tool"
    assert (await box.call(call("tool", label="a__b"))).output == "tool"
    assert (await box.call(call("tool", label="a"))).status == "failed"


async def test_a_server_of_the_operator_is_found_by_its_own_name(servers, network):
    box = await servers.open([asked("tester", None, authorization="key")], [])

    assert "tester__add" in names(box)
    assert network.headers[-1] == (("authorization", "Bearer key"),)


async def test_a_list_that_the_conversation_has_is_not_told_again(servers):
    first = await servers.open([asked()], [])

    assert (await servers.open([asked()], [as_input(item) for item in first.listings])).listings == []


async def test_a_server_that_cannot_be_reached_is_a_listing_with_an_error(servers):
    box = await servers.open([asked("gone", "http://gone.example/mcp"), asked()], [])

    assert "nobody is there" in box.listings[0].error
    assert names(box)[0] == "one__add"
    assert (await box.call(call("add", label="gone"))).status == "failed"


@pytest.mark.parametrize(
    ("name", "arguments", "output"),
    [
        ("picture", "{}", "[image: image/png, 20 bytes]"),
        ("facts", "", '{"answer":42}'),
        ("nothing", "{}", ""),
        (
            "big",
            "{}",
            "x" * MAX_RESULT_LENGTH + f"\n[cut: the tool answered {BIG} characters; {MAX_RESULT_LENGTH} are told]",
        ),
    ],
)
async def test_what_a_tool_answers_is_text(name, arguments, output, servers):
    done = await (await servers.open([asked()], [])).call(call(name, arguments))

    assert done.status == "completed"
    assert done.output == output


async def test_an_answer_that_asks_for_more_is_no_end_of_a_call(servers, network):
    async def call_tool(context, params):
        return CallToolResult(content=[], result_type="input_required")

    async def list_tools(context, params):
        return ListToolsResult(tools=[ListedByServer(name="any", input_schema={"type": "object"})])

    network.servers[ONE] = Server("asking", on_call_tool=call_tool, on_list_tools=list_tools)

    failed = await (await servers.open([asked()], [])).call(call("any"))

    assert failed.status == "failed"
    assert "input_required" in failed.error.message


@pytest.mark.parametrize(
    ("name", "arguments", "error", "told"),
    [
        ("fail", '{"reason": "no"}', "mcp_tool_execution_error", "Error executing tool fail"),
        ("add", '{"a": "x"}', "mcp_tool_execution_error", "validation error"),
        ("add", "[1]", "mcp_protocol_error", "no JSON object"),
        ("add", '{"a": 1', "mcp_protocol_error", "no JSON object"),
        ("add", "[" * 100_000, "mcp_protocol_error", "no JSON object"),
        ("unknown", "{}", "mcp_protocol_error", "may be called"),
    ],
)
async def test_a_call_that_fails_is_an_item_whose_error_the_model_reads(name, arguments, error, told, servers):
    failed = await (await servers.open([asked()], [])).call(call(name, arguments))

    assert failed.status == "failed"
    assert json.loads(msgspec.json.encode(failed))["error"]["type"] == error
    assert told in told_to_model(as_input(failed))


async def test_a_tool_that_the_request_does_not_allow_is_neither_shown_nor_called(servers, network):
    box = await servers.open([asked(allowed_tools=McpToolFilter(read_only=True))], [])

    assert names(box) == ["one__add"]
    assert (await box.call(call("fail", '{"reason": "no"}'))).status == "failed"
    assert network.seen.calls == []


@pytest.mark.parametrize(
    ("approval", "add", "fail"),
    [
        (None, True, True),
        ("always", True, True),
        ("never", False, False),
        (McpApproval(never=McpToolFilter(tool_names=["add"])), False, True),
        (McpApproval(never=McpToolFilter(read_only=True)), False, True),
        (McpApproval(never=McpToolFilter()), True, True),
        (McpApproval(always=McpToolFilter(["add"]), never=McpToolFilter(["add", "fail"])), True, False),
    ],
)
async def test_a_call_needs_approval_unless_the_request_says_otherwise(approval, add, fail, servers):
    box = await servers.open([asked(require_approval=approval)], [])

    assert box.find("one__add").needs_approval == add
    assert box.find("one__fail").needs_approval == fail


def conversation(approve=True, key=REQUEST) -> list[InputItem]:
    return [
        InputItem(type="mcp_approval_request", id=key, server_label="one", name="add", arguments='{"a": 1, "b": 2}'),
        InputItem(type="mcp_approval_response", approval_request_id=key, approve=approve),
    ]


async def test_an_allowed_call_is_made_once_whoever_answers_again(servers, network):
    first = await servers.open([asked(require_approval="always")], conversation())
    again = await servers.open([asked(require_approval="always")], conversation())

    done = await first.call(*first.approved)
    refused = await again.call(*again.approved)

    assert (done.output, done.approval_request_id) == ("3", REQUEST)
    assert refused.status == "failed"
    assert "made already" in refused.error.message
    assert network.seen.calls == ["add"]
    assert (await servers.open([asked()], [*conversation(), as_input(done)])).approved == []


async def test_an_allowed_call_is_not_made_when_nobody_can_tell_whether_it_has_been(nursery, network):
    disk = Disk()
    disk.failure = OSError("the disk is gone")
    sessions = ToolSessions(connect=network.connect)
    servers = McpServers(sessions, [], AllowedServers.of((ONE,)), make_store(disk=disk))
    await nursery.start(sessions.run)
    box = await servers.open([asked(require_approval="always")], conversation())

    refused = await box.call(*box.approved)

    assert refused.status == "failed"
    assert "was not made" in refused.error.message
    assert network.seen.calls == []


async def test_a_call_that_was_not_allowed_is_not_made(servers):
    assert (await servers.open([asked()], conversation(approve=False))).approved == []


@pytest.mark.parametrize(
    ("tools", "items", "complaint"),
    [
        ([asked()], conversation()[1:], "was not asked"),
        ([asked()], [*conversation(), conversation()[1]], "answered twice"),
        ([asked()], conversation()[::-1], "was not asked"),
        ([], conversation(), "which tools has not"),
        ([asked("two")], conversation(), "which tools has not"),
        ([asked(), asked()], [], "two MCP servers"),
        ([asked(), asked("two", TWO), asked()], [], r"tools\[2\]\.server_label is that of tools\[0\]"),
        ([asked("no label")], [], "server_label must be"),
        ([asked("x" * 65)], [], "64 at most"),
        ([asked(None)], [], "server_label"),
        ([asked(url=None)], [], "server_url is missing"),
        ([ResponseTool(type="web_search")], [], r"^tools\[0\]: web_search .*\(--tool-server browser=URL\)$"),
        ([asked(url="http://other.example/mcp")], [], "--allowed-mcp-servers"),
        ([asked(connector_id="connector_gmail")], [], "connector_id"),
        ([asked(headers={"Host": "x"})], [], "Host"),
        ([asked(require_approval="sometimes")], [], "require_approval"),
        ([asked(allowed_tools=["x"] * 600)], [], "at most 512"),
        ([asked(allowed_tools=["x" * 300])], [], "at most 256"),
        ([asked(f"s{i}") for i in range(17)], [], "at most 16"),
    ],
)
async def test_a_request_that_cannot_be_is_refused(tools, items, complaint, servers):
    with pytest.raises(BadRequestError, match=complaint):
        await servers.open(tools, items)


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        (asked("no label"), ".server_label"),
        (asked(url=None), ".server_url"),
        (asked(url="http://other.example/mcp"), ".server_url"),
        (asked(connector_id="connector_gmail"), ".connector_id"),
        (asked(headers={"Host": "x"}), ".headers"),
        (asked(require_approval="sometimes"), ".require_approval"),
        (asked(allowed_tools=["x"] * 600), ".allowed_tools"),
        (asked(allowed_tools=["add", "sbtract"]), ".allowed_tools"),
        (asked(allowed_tools=McpToolFilter(["sbtract"])), ".allowed_tools"),
        (ResponseTool(type="code_interpreter"), ""),
    ],
)
async def test_a_refusal_says_once_where_in_the_request_it_is(tool, field, servers):
    function = ResponseTool(type="function", name="weather")

    with pytest.raises(BadRequestError) as refused:
        await servers.open([function, tool], [])

    assert refused.value.param == f"tools[1]{field}"
    assert refused.value.message.count("tools[1]") == 1


async def test_a_tool_that_is_allowed_and_does_not_exist_is_refused_with_those_that_there_are(servers):
    with pytest.raises(BadRequestError) as refused:
        await servers.open([asked(allowed_tools=["sbtract"])], [])

    assert refused.value.message == (
        "tools[0].allowed_tools names 'sbtract', which is none of the tools of the MCP server 'one': these are 'add', "
        "'fail', 'slow', 'progress', 'big', 'picture', 'facts', 'nothing', and 1 more"
    )
    gone = await servers.open([asked("gone", "http://gone.example/mcp", allowed_tools=["any"])], [])
    assert "nobody is there" in gone.listings[0].error


async def test_where_a_server_is_the_log_says_beside_its_label_and_nobody_else_is_told(nursery, caplog):
    caplog.set_level("INFO", "trillm.tools")
    secret = ToolAddress("stdio", command=("/nowhere/secret-command", "--key"))
    sessions = ToolSessions()
    servers = McpServers(sessions, [ToolServer(secret, "here")], AllowedServers.of(()))
    nursery.start_soon(servers.run)
    with trio.fail_after(10):
        while "tried again" not in caplog.text:
            await trio.sleep(0.01)

    [error] = [item.error for item in (await servers.open([asked("here", None)], [])).listings]

    assert error.startswith("here: the server cannot be reached: FileNotFoundError: No such file or directory")
    assert "secret" not in error
    [line] = [record.getMessage() for record in caplog.records if "--tool-server" in record.getMessage()]
    assert line.startswith("--tool-server here (stdio:/nowhere/secret-command): the server cannot be reached")
    assert line.count("secret-command") == 1


def naming_server(*names: str) -> Server:
    async def list_tools(context, params) -> ListToolsResult:
        return ListToolsResult(tools=[ListedByServer(name=name, input_schema={"type": "object"}) for name in names])

    async def call_tool(context, params) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=params.name)])

    return Server("naming", on_list_tools=list_tools, on_call_tool=call_tool)


def paged_server(num_pages: int, per_page: int, schema=None) -> Server:
    async def list_tools(context, params) -> ListToolsResult:
        page = int(params.cursor or 0) if params else 0
        tools = [
            ListedByServer(name=f"tool{page}.{i}", input_schema=schema or {"type": "object"}) for i in range(per_page)
        ]
        return ListToolsResult(tools=tools, next_cursor=str(page + 1) if page + 1 < num_pages else None)

    async def call_tool(context, params) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=params.name)])

    return Server("paged", on_list_tools=list_tools, on_call_tool=call_tool)


async def test_lists_of_several_pages_are_read_whole_and_odd_names_are_shown_plainly(servers, network):
    network.servers[ONE] = paged_server(3, 2)

    box = await servers.open([asked()], [])

    assert [tool.name for tool in box.listings[0].tools] == [f"tool{page}.{i}" for page in range(3) for i in range(2)]
    assert box.find(names(box)[5]).name == "tool2.1"
    assert "." not in names(box)[5]
    assert (await box.call(call("tool2.1"))).output == "tool2.1"


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        (paged_server(1000, 1), "more than 64 pages"),
        (paged_server(10, 100), "more than 512 tools"),
        (paged_server(1, 100, {"type": "object", "description": "x" * 20_000}), "bytes"),
    ],
    ids=["pages", "tools", "bytes"],
)
async def test_a_list_without_end_is_an_error(server, complaint, servers, network):
    network.servers[ONE] = server

    box = await servers.open([asked()], [])

    assert complaint in box.listings[0].error
    assert names(box) == []
