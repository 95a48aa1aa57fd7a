"""Web pages: a script may call if its origin is allowed and is told so; without keys no page gets in by stealth."""

from __future__ import annotations

import json

import attrs
import pytest

from app.cors import CorsMiddleware
from app.cors_policy import CorsPolicy
from app.factory import create_app
from protocol.errors import BadRequestError
from tests.helpers.app_under_test import make_app
from tests.helpers.asgi import Exchange, http_scope

PAGE = b"https://chat.example"
ONE = CorsPolicy((PAGE.decode(),))
ALL = CorsPolicy(("*",))
ASKS = (b"access-control-request-method", b"POST")


class Inside:
    def __init__(self) -> None:
        self.num_asked = 0

    async def __call__(self, scope, receive, send) -> None:
        self.num_asked += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"inside"})


async def ask(
    policy: CorsPolicy, *headers: tuple[bytes, bytes], method: str = "POST", has_keys: bool = True, **scope: object
) -> tuple[Exchange, int]:
    """What comes back, and how often the application was asked."""
    inside = Inside()
    exchange = Exchange(http_scope(method, "/v1/completions", [(b"host", b"localhost:8000"), *headers], **scope))
    await exchange.run(CorsMiddleware(inside, policy, has_keys=has_keys))
    return exchange, inside.num_asked


def told(exchange: Exchange) -> dict[str, str]:
    """The headers that speak of origins."""
    headers = [(name.decode(), value.decode()) for name, value in exchange.sent[0]["headers"]]
    return {name: value for name, value in headers if name.startswith("access-control-") or name == "vary"}


async def test_by_default_nothing_is_told_and_no_preflight_is_answered() -> None:
    for method, headers in (("POST", [(b"origin", PAGE)]), ("OPTIONS", [(b"origin", PAGE), ASKS])):
        exchange, num_asked = await ask(CorsPolicy(), *headers, method=method)
        assert (num_asked, told(exchange)) == (1, {})


async def test_an_allowed_page_may_read_the_answer_and_its_request_id() -> None:
    exchange, num_asked = await ask(ONE, (b"origin", PAGE))
    assert num_asked == 1
    assert told(exchange) == {
        "access-control-allow-origin": "https://chat.example",
        "access-control-expose-headers": "X-Request-Id, Retry-After",
        "vary": "Origin",
    }


async def test_all_pages_are_told_so_without_naming_one() -> None:
    exchange, _ = await ask(ALL, (b"origin", b"null"))
    assert told(exchange)["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "origins",
    [
        [],
        [b"https://evil.example"],
        [b"https://chat.example.evil.example"],
        [b"HTTPS://chat.example"],
        [b"http://chat.example"],
        [b"null"],
        [PAGE, PAGE],
        [b"\xff"],
    ],
)
async def test_any_other_page_is_told_nothing_but_that_the_answer_depends_on_it(origins: list[bytes]) -> None:
    exchange, num_asked = await ask(ONE, *((b"Origin", origin) for origin in origins))
    assert num_asked == 1
    assert told(exchange) == {"vary": "Origin"}


async def test_a_preflight_is_answered_without_asking_the_application() -> None:
    wanted = (b"access-control-request-headers", b"authorization, content-type")
    exchange, num_asked = await ask(ONE, (b"origin", PAGE), ASKS, wanted, method="OPTIONS")
    assert (exchange.status, num_asked, exchange.num_received, exchange.data) == (204, 0, 0, b"")
    headers = told(exchange)
    assert headers["access-control-allow-origin"] == "https://chat.example"
    assert headers["access-control-allow-methods"] == "POST"
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    assert "Access-Control-Request-Headers" in headers["vary"]
    assert "access-control-allow-credentials" not in headers


async def test_credentials_are_allowed_only_when_the_operator_says_so() -> None:
    policy = CorsPolicy((PAGE.decode(),), credentials=True)
    for method in ("POST", "OPTIONS"):
        exchange, _ = await ask(policy, (b"origin", PAGE), ASKS, method=method)
        assert told(exchange)["access-control-allow-credentials"] == "true"
        exchange, _ = await ask(policy, (b"origin", b"https://evil.example"), ASKS, method=method)
        assert "access-control-allow-credentials" not in told(exchange)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ((b"access-control-request-method", b"DELETE"), "the method DELETE"),
        ((b"access-control-request-headers", b"x-a, x-b"), "the header x-b"),
        ((b"access-control-request-headers", b"x-a\x00"), "the header x-a"),
    ],
)
async def test_a_preflight_for_what_is_not_allowed_is_a_403_that_names_it(
    asked: tuple[bytes, bytes], text: str
) -> None:
    policy = CorsPolicy((PAGE.decode(),), methods=("GET", "POST"), headers=("X-A",))
    asks = () if asked[0] == ASKS[0] else (ASKS,)
    exchange, num_asked = await ask(policy, (b"origin", PAGE), asked, *asks, method="OPTIONS")
    assert (exchange.status, num_asked) == (403, 0)
    error = json.loads(exchange.data)["error"]
    assert error["code"] == "origin_not_allowed"
    assert text in error["message"]


@pytest.mark.parametrize(
    "origin", [b"https://evil.example", b"null", b"http://localhost:3000", b"http://[", b"", b"file://"]
)
async def test_without_keys_a_page_of_another_origin_is_refused_before_its_body_is_read(origin: bytes) -> None:
    for policy in (CorsPolicy(), ONE):
        exchange, num_asked = await ask(policy, (b"origin", origin), has_keys=False)
        assert (exchange.status, num_asked, exchange.num_received) == (403, 0, 0)
        assert "--allowed-origins" in json.loads(exchange.data)["error"]["message"]
        assert "access-control-allow-origin" not in told(exchange)


async def test_without_keys_allowed_pages_our_own_and_those_that_are_no_pages_are_served() -> None:
    for origins in ([PAGE], [b"http://localhost:8000"], []):
        _, num_asked = await ask(ONE, *((b"origin", origin) for origin in origins), has_keys=False)
        assert num_asked == 1
    _, num_asked = await ask(ONE, (b"origin", b"https://evil.example"), has_keys=False, server=("/run/socket", None))
    assert num_asked == 1, "what comes over a Unix socket comes from the operator's proxy"


async def test_a_refusal_and_a_not_found_carry_the_leave_to_read_them() -> None:
    under_test = make_app(api_keys=("sesame",))
    app = create_app(attrs.evolve(under_test.services, cors=ONE))
    for path, headers, status in (
        ("/v1/models", [], 401),
        ("/nothing", [(b"authorization", b"Bearer sesame")], 404),
        ("/v1/models", [(b"authorization", b"Bearer sesame")], 200),
    ):
        exchange = Exchange(http_scope("GET", path, [(b"origin", PAGE), *headers]))
        await exchange.run(app)
        assert exchange.status == status
        assert told(exchange)["access-control-allow-origin"] == PAGE.decode()


async def test_an_allowed_page_does_not_open_a_server_without_keys_to_other_names() -> None:
    app = create_app(attrs.evolve(make_app().services, cors=ALL))
    exchange = Exchange(http_scope("GET", "/v1/models", [(b"origin", PAGE), (b"host", b"evil.example")]))
    await exchange.run(app)
    assert exchange.status == 403
    assert json.loads(exchange.data)["error"]["code"] == "loopback_only"


async def test_a_websocket_of_another_page_is_closed_without_keys() -> None:
    scope = {"type": "websocket", "path": "/", "headers": [(b"origin", PAGE)], "server": ("127.0.0.1", 1)}
    exchange = Exchange(scope)
    await exchange.run(CorsMiddleware(Inside(), CorsPolicy(), has_keys=False))
    assert exchange.sent == [{"type": "websocket.close", "code": 1008, "reason": "the page's origin is not allowed"}]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"origins": ("https://chat.example/",)}, "--allowed-origins"),
        ({"origins": ("chat.example",)}, "--allowed-origins"),
        ({"origins": ("*",), "credentials": True}, "--allow-credentials needs --allowed-origins by name"),
        ({"methods": ("GET,POST",)}, "--allowed-methods"),
        ({"headers": ("X A",)}, "--allowed-headers"),
    ],
)
def test_a_policy_that_no_browser_would_follow_is_refused(fields: dict, text: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        CorsPolicy(**fields)
    assert text in caught.value.message
