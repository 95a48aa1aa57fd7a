"""The door: who has no key gets nowhere, however the path is spelled."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from app.auth import PUBLIC_PATHS, AuthenticationMiddleware, LoopbackMiddleware
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.asgi import Exchange, http_scope

KEYS = ("sesame", "schlüssel")
RIGHT = (b"authorization", b"Bearer sesame")


OPEN = make_app(api_keys=KEYS)


class Inside:
    """Records what got through."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope, receive, send) -> None:
        self.paths.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})


async def knock(path: str, *headers: tuple[bytes, bytes], method: str = "GET", root_path: str = "") -> Exchange:
    exchange = Exchange(http_scope(method, path, headers, root_path))
    await exchange.run(AuthenticationMiddleware(Inside(), KEYS))
    return exchange


@pytest.mark.parametrize(
    "value",
    [b"Bearer sesame", b"bearer sesame", b"BEARER  sesame", b"Bearer sesame ", "Bearer schlüssel".encode()],
)
async def test_a_right_key_opens(value: bytes) -> None:
    assert (await knock("/v1/models", (b"authorization", value))).data == b"inside"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Bearer sesam",
        b"Bearer sesamex",
        b"Bearer sesame,Bearer sesame",
        b"Basic sesame",
        b"sesame",
        b"Bearer caf\xe9",
        "Bearer schlüssel".encode("latin-1"),
        b"Bearer " + b"\x00" * 10_000,
    ],
)
async def test_a_wrong_key_is_told_in_openais_shape_before_the_body_is_read(value: bytes) -> None:
    exchange = await knock("/v1/chat/completions", (b"authorization", value), method="POST")
    assert exchange.status == 401
    assert exchange.num_received == 0
    assert (b"www-authenticate", b"Bearer") in exchange.sent[0]["headers"]
    error = json.loads(exchange.data)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_api_key"
    assert error["param"] is None


async def test_no_header_and_two_headers_are_refused() -> None:
    assert (await knock("/v1/models")).status == 401
    assert (await knock("/v1/models", RIGHT, RIGHT)).status == 401
    assert (await knock("/v1/models", RIGHT, (b"Authorization", b"Bearer wrong"))).status == 401


@pytest.mark.parametrize("path", sorted(PUBLIC_PATHS))
@pytest.mark.parametrize("root_path", ["", "/llm"])
async def test_probes_need_no_key(path: str, root_path: str) -> None:
    assert (await knock(root_path + path, root_path=root_path)).data == b"inside"


@given(
    base=st.sampled_from(["/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize", "/invocations", "/health"]),
    edits=st.lists(st.sampled_from(["//", "%2f", "/./", "/../", "/", "?", "#", ";", "\\", "%00", " ", "/health/.."])),
    upper=st.booleans(),
    at=st.integers(0, 20),
    root_path=st.sampled_from(["", "/llm", "/health"]),
    prefixes=st.integers(0, 2),
)
def test_no_odd_spelling_of_a_path_gets_in_without_a_key(
    base: str, edits: list[str], upper: bool, at: int, root_path: str, prefixes: int
) -> None:
    path = base[:at] + "".join(edits) + base[at:]
    path = root_path * prefixes + "/" + (path.upper() if upper else path).lstrip("/")

    async def knock_below_root_path() -> Exchange:
        return await knock(path, root_path=root_path)

    exchange = trio.run(knock_below_root_path)
    assert exchange.status == (200 if path.removeprefix(root_path) in PUBLIC_PATHS else 401)


@given(
    root_path=st.sampled_from(["", "/llm", "/health"]),
    prefixes=st.integers(0, 2),
    path=st.sampled_from(["/health", "/v1/models", "", "/"]),
)
def test_what_needs_no_key_is_what_the_application_takes_for_public(root_path: str, prefixes: int, path: str) -> None:
    """The door strips the prefix as the application does: what it lets through runs no model."""

    async def statuses() -> tuple[int, int]:
        found = []
        for headers in ((), (RIGHT,)):
            exchange = Exchange(http_scope("GET", root_path * prefixes + path or "/", headers, root_path))
            await exchange.run(OPEN.app)
            found.append(exchange.status)
        return found[0], found[1]

    without, with_key = trio.run(statuses)
    assert without == 401 or without == with_key


@pytest.mark.parametrize("middleware", [lambda app: AuthenticationMiddleware(app, KEYS), LoopbackMiddleware])
async def test_a_refusal_carries_the_request_s_label(middleware: Any) -> None:
    for sent, expected in ((b"my-label", r"my-label"), (b"no\nlabel", r"[0-9a-f]{32}"), (None, r"[0-9a-f]{32}")):
        headers = [(b"host", b"evil.example")] + ([] if sent is None else [(b"X-Request-ID", sent)])
        exchange = Exchange(http_scope("GET", "/v1/models", headers))
        await exchange.run(middleware(Inside()))
        assert exchange.status in (401, 403)
        assert re.fullmatch(expected, dict(exchange.sent[0]["headers"])[b"x-request-id"].decode())


async def test_a_websocket_without_a_key_is_closed() -> None:
    exchange = Exchange({"type": "websocket", "path": "/v1/realtime", "headers": []})
    await exchange.run(AuthenticationMiddleware(Inside(), KEYS))
    assert exchange.sent[0]["type"] == "websocket.close"
    assert exchange.sent[0]["code"] == 1008


async def test_a_websocket_is_closed_also_where_no_key_is_needed(caplog) -> None:
    exchange = Exchange({"type": "websocket", "path": "/health", "headers": []})
    await exchange.run(OPEN.app)
    reason = "there are no WebSockets here"
    assert exchange.sent == [{"type": "websocket.close", "code": 1008, "reason": reason}]
    assert caplog.text == ""


async def send(under_test: AppUnderTest, method: str, path: str, *headers: tuple[bytes, bytes]) -> Exchange:
    json_type = (b"content-type", b"application/json")
    exchange = Exchange(http_scope(method, path, [json_type, *headers]), b'{"prompt": "Hi", "max_tokens": 1}')
    await exchange.run(under_test.app)
    return exchange


async def test_the_application_is_closed_to_everybody_without_a_key() -> None:
    under_test = make_app(api_keys=KEYS)
    for path in (
        "/v1/completions",
        "/v1//completions",
        "//v1/completions",
        "/v1/completions/",
        "/tokenize",
        "/nothing",
    ):
        assert (await send(under_test, "POST", path)).status == 401
    assert (await send(under_test, "POST", "/v1/completions", RIGHT)).status == 200
    assert (await send(under_test, "POST", "/nothing", RIGHT)).status == 404
    assert (await send(under_test, "GET", "/health")).status == 200


async def test_under_a_path_prefix_the_same_doors_are_open_and_closed() -> None:
    under_test = make_app(api_keys=KEYS)

    async def status(path: str, *headers: tuple[bytes, bytes]) -> int:
        exchange = Exchange(http_scope("GET", path, headers, root_path="/llm"))
        await exchange.run(under_test.app)
        return exchange.status

    assert await status("/llm/v1/models") == 401
    assert await status("/llm/v1/models", RIGHT) == 200
    assert await status("/llm/health") == 200
    assert await status("/v1/models") == 401
    assert await status("/v1/models", RIGHT) == 404


async def test_a_preflight_is_answered_and_runs_nothing() -> None:
    under_test = make_app(api_keys=KEYS)
    assert (await send(under_test, "OPTIONS", "/v1/completions")).status == 200
    assert under_test.engine.prompts == []


async def test_one_spelling_per_route_even_with_a_key() -> None:
    under_test = make_app(api_keys=KEYS)
    for path in ("/v1//completions", "/v1/completions/", "/V1/completions"):
        assert (await send(under_test, "POST", path, RIGHT)).status == 404
    assert under_test.engine.prompts == []


@pytest.mark.parametrize(
    ("server", "status"),
    [
        (("127.0.0.1", 8000), 200),
        (("::1", 8000), 200),
        (("::ffff:127.0.0.1", 8000), 200),  # a socket of IPv6 that takes IPv4's connections
        (("::ffff:192.0.2.1", 8000), 403),
        (("/run/trillm.sock", None), 200),
        (None, 200),
        (("192.0.2.1", 8000), 403),
        (("2001:db8::1", 8000), 403),
        (("odd", 8000), 403),
    ],
)
async def test_without_keys_only_loopback_addresses_are_answered(server, status):
    """hypercorn's command may be bound to any address without asking us."""
    exchange = Exchange(http_scope("GET", "/v1/models", [(b"host", b"localhost")], server=server))
    await exchange.run(LoopbackMiddleware(Inside()))

    assert exchange.status == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LocalHost:8000", "localhost.", "a.localhost:1", "[::1]:80", "[::1]")),
        *((host, 200) for host in ("127.0.0.1:8000", "127.9.9.9", " localhost ")),
        *((host, 403) for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "evillocalhost", "")),
        *((host, 403) for host in ("192.0.2.1", "0.0.0.0", "[2001:db8::1]:80", "127.0.0.1.evil.example", "::1", "[")),
        *((host, 403) for host in ("localhost@evil.example", "localhost:80:80", "evil.example:127.0.0.1", "ü", "a,b")),
    ],
)
async def test_without_keys_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    """A web page whose own name points to 127.0.0.1 is asked for under that name."""
    headers = [(b"Host", host.encode()), (b"origin", b"http://evil.example")]
    exchange = Exchange(http_scope("POST", "/v1/completions", headers))
    await exchange.run(LoopbackMiddleware(Inside()))

    assert exchange.status == status
    assert exchange.num_received == 0
    if status == 403:
        assert json.loads(exchange.data)["error"]["code"] == "loopback_only"


async def test_a_second_host_does_not_hide_the_first() -> None:
    exchange = Exchange(http_scope("GET", "/v1/models", [(b"host", b"localhost"), (b"host", b"evil.example")]))
    await exchange.run(LoopbackMiddleware(Inside()))

    assert exchange.status == 403


@pytest.mark.parametrize("server", [("/run/trillm.sock", None), None])
async def test_over_a_unix_socket_the_name_does_not_matter(server: tuple[str, None] | None) -> None:
    exchange = Exchange(http_scope("GET", "/v1/models", [(b"host", b"anything")], server=server))
    await exchange.run(LoopbackMiddleware(Inside()))

    assert exchange.status == 200


async def test_without_a_host_as_in_http_1_0_a_loopback_address_suffices() -> None:
    exchange = Exchange(http_scope("GET", "/v1/models"))
    await exchange.run(LoopbackMiddleware(Inside()))

    assert exchange.status == 200
