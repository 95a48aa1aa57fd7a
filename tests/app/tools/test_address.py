from __future__ import annotations

import pytest

from app.tools.address import ToolAddress, ToolServer, read_tool_servers, read_url
from app.tools.allow_list import AllowedServers
from app.tools.request_headers import request_headers
from protocol.errors import BadRequestError


def test_tool_servers_are_addresses_urls_and_commands_and_may_be_named():
    assert read_tool_servers(
        ("localhost:8001,docs=https://a.example/mcp", "clock=stdio:uvx 'mcp server' --zone=UTC,2")
    ) == (
        ToolServer(ToolAddress("sse", "http://localhost:8001/sse")),
        ToolServer(ToolAddress("http", "https://a.example/mcp"), "docs"),
        ToolServer(ToolAddress("stdio", command=("uvx", "mcp server", "--zone=UTC,2")), "clock"),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ftp://a.example/mcp", "no URL of http"),
        ("http://user:key@a.example/mcp", "credentials"),
        ("http://a.example/../mcp", "dots"),
        ("http://a.example/%2e%2e/mcp", "escapes"),
        ("http://a.example:99999/", "no URL"),
        ("http://[::1/", "no URL"),
        ("demo", "takes host:port"),
        ("stdio:", "needs a command"),
        ("stdio:'open", "No closing quotation"),
        ("a=localhost:1,a=localhost:2", "twice"),
        (",".join(f"localhost:{port}" for port in range(1, 40)), "at most 32"),
    ],
)
def test_what_is_no_tool_server_is_refused_with_its_reason(text, complaint):
    with pytest.raises(BadRequestError, match=complaint):
        read_tool_servers((text,))


ALLOWED = AllowedServers.of(("https://a.example/tools,http://127.0.0.1:8001",))


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example/tools",
        "https://A.example:443/tools/",
        "https://a.example/tools/mcp?key=1",
        "http://127.0.0.1:8001/mcp",
    ],
)
def test_what_lies_at_an_allowed_url_or_below_it_is_allowed(url):
    assert ALLOWED.address(url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/tools",
        "https://a.example/toolsmith",
        "https://a.example/",
        "https://a.example:8443/tools",
        "https://a.example.evil.example/tools",
        "https://b.example/tools",
        "https://a.example/tools/../admin",
        "https://a.example/tools/%2e%2e/admin",
        "https://a.example/tools/..;x/admin",
        "https://a.example:0/tools",
        "https://a.example/tools\\..\\admin",
        "https://a.example@evil.example/tools",
        "http://127.0.0.1:8002/mcp",
        "http://localhost:8001/mcp",
        "file:///etc/passwd",
        "x" * 3000,
        "",
    ],
)
def test_no_other_address_is(url):
    with pytest.raises(BadRequestError):
        ALLOWED.address(url)


def test_without_an_allow_list_nothing_is_allowed():
    with pytest.raises(BadRequestError, match="--allowed-mcp-servers"):
        AllowedServers().address("https://a.example/tools")


def test_an_address_is_told_without_what_its_url_hides():
    assert str(read_url("https://a.example/mcp?token=secret")) == "https://a.example/mcp"


def test_headers_are_the_same_in_any_order_and_spelling():
    assert request_headers({"X-B": "2", "x-a": " 1 "}, "key") == request_headers({"X-A": "1", "x-b": "2"}, "key")
    assert ("authorization", "Bearer key") in request_headers({}, "key")


@pytest.mark.parametrize(
    ("headers", "authorization", "complaint"),
    [
        ({"Host": "evil"}, None, "Host"),
        ({"Mcp-Session-Id": "1"}, None, "Mcp-Session-Id"),
        ({"a b": "1"}, None, "a b"),
        ({"x": "1\r\nHost: evil"}, None, "characters"),
        ({"x": "é"}, None, "characters"),
        ({"x": "1", "X": "2"}, None, "twice"),
        ({"x": "1" * 10_000}, None, "at most 8192"),
        ({str(i): "1" for i in range(40)}, None, "at most 32"),
        ({str(i): "1" * 8000 for i in range(3)}, None, "at most 16384"),
        ({"Authorization": "Basic x"}, "key", "both given"),
    ],
)
def test_other_headers_are_refused_without_their_values(headers, authorization, complaint):
    with pytest.raises(BadRequestError, match=complaint) as error:
        request_headers(headers, authorization)

    assert "evil" not in error.value.message


@pytest.mark.parametrize(
    ("url", "may_be_asked"),
    [
        ("https://a.example/tools/messages?session_id=1%202", True),
        ("https://a.example:443/tools", True),
        ("http://a.example/tools", False),
        ("https://a.example:8443/tools", False),
        ("https://a.example/", False),
        ("https://a.example/tools/%2e%2e/admin", False),
        ("http://127.0.0.1:8001/", False),
    ],
)
def test_a_server_that_is_allowed_leads_to_what_is_allowed_of_its_origin(url, may_be_asked):
    assert ALLOWED.address("https://a.example/tools/mcp").may_ask(url) is may_be_asked
    assert read_url("https://a.example/tools/mcp").may_ask(url)


@pytest.mark.parametrize("url", ["http://10.0.0.7:9100/mcp", "https://inside.example/mcp"])
def test_what_a_connection_fails_with_tells_clients_nothing_of_where_the_server_is(url):
    parts = url.split("/")[2]
    place = parts if ":" in parts else f"{parts}:443"
    told = read_url(url).hidden_in(f"all attempts to connect to {place} failed ({parts})")
    assert told == "all attempts to connect to the server failed (the server)"
