"""What else is asked of the proxy, and what goes along with it."""

from __future__ import annotations

import pytest
import trio

from tests.helpers.fake_upstreams import Talk, answers, breaks_off, open_proxy_under_test, refuses, says_nothing

BODY = {"prompt": "Hi"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/owner/model:1"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/responses"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/tokenize"),
        ("POST", "/score"),
    ],
)
async def test_what_is_asked_of_a_model_goes_to_a_decode_server_unchanged(method, path):
    async with open_proxy_under_test() as proxy:
        body = b'{"input": [1, 2]}' if method == "POST" else b""
        exchange = proxy.exchange(body, path, method, query=b"a=1&b=%20")
        await exchange.run(proxy.app)
        assert exchange.status == 200
        [had] = proxy.requests("d0")
        assert (had.method, had.target, had.body) == (method, f"{path}?a=1&b=%20", body)
        assert proxy.requests("p0") == []


@pytest.mark.parametrize(
    "path", ["/pause", "/reset_prefix_cache", "/sleep", "/v1/load_lora_adapter", "/collective_rpc"]
)
async def test_what_is_for_one_server_goes_to_none(path):
    async with open_proxy_under_test() as proxy:
        reply = await proxy.ask({}, path)
        assert reply.status_code == 404
        assert reply.json["error"]["message"].startswith(f"{path} is for one server")
        assert proxy.requests("d0") == []


async def test_who_looks_with_a_browser_is_told_what_it_is():
    async with open_proxy_under_test(api_key=("k",)) as proxy:
        reply = await proxy.ask({}, "/", "GET")
        assert (reply.status_code, reply.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert "This is a proxy of trillm" in reply.text
        assert "Answers come from http://d0" in reply.text
        assert proxy.requests("d0") == []


@pytest.mark.parametrize(
    "path", ["/v1/../pause", "/v1/./models", "/v1//x", "/v1/a b", "/v1/a?b", "/v1/é", "/other", "/v1/"]
)
async def test_a_path_that_could_be_read_as_another_one_goes_nowhere(path):
    async with open_proxy_under_test() as proxy:
        assert (await proxy.ask({}, path)).status_code == 404
        assert proxy.requests("d0") == []


async def test_headers_go_through_but_for_those_of_one_connection():
    async def tells_headers(talk: Talk) -> None:
        await talk.whole({}, connection="x-hop", x_hop="1", x_other="2", server="s", set_cookie="a=b", x_request_id="u")

    async with open_proxy_under_test(decode=[tells_headers]) as proxy:
        reply = await proxy.ask(
            BODY,
            x_request_id="mine",
            authorization="Bearer k",
            traceparent="00-1-2-01",
            x_vllm_priority="3",
            cookie="c",
            connection="close, x-private",
            x_private="p",
            accept_encoding="gzip",
        )
        assert reply.headers.getlist("X-Request-Id") == ["mine"]
        assert reply.headers["X-Other"] == "2"
        assert not {"x-hop", "connection", "server", "set-cookie"} & {name.lower() for name, _ in reply.headers}
        for name in ("p0", "d0"):
            [had] = proxy.requests(name)
            assert had.values("host") == [name]
            assert had.values("x-request-id") == ["mine"]
            assert had.values("authorization") == ["Bearer k"]
            assert had.values("traceparent") == ["00-1-2-01"]
            assert had.values("x-vllm-priority") == ["3"]
            assert had.values("accept-encoding") == ["identity"]
            assert had.values("content-length") == [str(len(had.body))]
            assert [had.values(name) for name in ("cookie", "x-private", "connection")] == [[], [], []]


async def test_a_request_without_a_label_has_the_same_one_at_both_servers():
    async with open_proxy_under_test() as proxy:
        reply = await proxy.ask(BODY)
        [[first], [second]] = [proxy.requests(name)[0].values("x-request-id") for name in ("p0", "d0")]
        assert first == second == reply.headers["X-Request-Id"]


async def test_servers_may_have_a_key_of_their_own():
    async with open_proxy_under_test(api_key=("front",), upstream_api_key="behind") as proxy:
        assert (await proxy.ask(BODY)).status_code == 401
        assert (await proxy.ask(BODY, authorization="Bearer front")).status_code == 200
        assert (await proxy.ask({}, "/v1/messages", x_api_key="front")).status_code == 200
        for had in (*proxy.requests("p0"), *proxy.requests("d0")):
            assert had.values("authorization") == ["Bearer behind"]
            assert had.values("x-api-key") == []


async def test_what_may_have_been_done_is_not_done_again():
    async with open_proxy_under_test(decode=[breaks_off, answers]) as proxy:
        assert (await proxy.ask({}, "/v1/responses")).status_code == 502
        assert proxy.requests("d1") == []
        proxy.upstreams["d0"].is_reachable = False
        for _ in range(2):
            assert (await proxy.ask({}, "/v1/responses")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
async def test_it_is_well_as_long_as_one_decode_server_is(path, autojump_clock):
    async with open_proxy_under_test(decode=[refuses(503), says_nothing, answers]) as proxy:
        assert (await proxy.ask(path=path, method="GET")).status_code == 200
        proxy.upstreams["d2"].script = breaks_off
        reply = await proxy.ask(path=path, method="GET")
        assert (reply.status_code, reply.json["error"]["message"]) == (503, "Not ready: no decode server answers")
        assert trio.current_time() < 3


async def test_probes_are_counted_as_what_they_come_to_and_blame_the_server_by_its_role(caplog):
    caplog.set_level("INFO", logger="trillm.proxy")
    sample = 'trillm:proxy_requests_total{end="%s",role="health",server="http://d0"}'
    async with open_proxy_under_test() as proxy:
        for _ in range(2):
            assert (await proxy.ask(path="/health", method="GET")).status_code == 200
        assert proxy.upstreams["d0"].num_connections == 1
        proxy.upstreams["d0"].script = refuses(503)
        assert (await proxy.ask(path="/health", method="GET")).status_code == 503
        proxy.upstreams["d0"].script = breaks_off
        assert (await proxy.ask(path="/health", method="GET")).status_code == 503
        proxy.upstreams["d0"].script = answers
        assert (await proxy.ask(path="/health", method="GET")).status_code == 200
        ends = [await proxy.count(sample % end) for end in ("answered", "refused", "broken", "left")]
        assert ends == [3, 1, 1, 0]
    failure, back = (record.message for record in caplog.records if record.name == "trillm.proxy")
    assert failure.startswith("decode server http://d0 is broken: ")
    assert back == "decode server http://d0 is back"


async def test_it_tells_what_it_does():
    async with open_proxy_under_test(decode=[answers, answers]) as proxy:
        proxy.upstreams["d0"].is_reachable = False
        await proxy.ask(BODY)
        text = (await proxy.ask(path="/metrics", method="GET")).text
        for line in (
            'trillm:proxy_answers_total{way="handed_over"} 1.0',
            'trillm:proxy_requests_total{end="unreachable",role="decode",server="http://d0"} 1.0',
            'trillm:proxy_requests_total{end="answered",role="decode",server="http://d1"} 1.0',
            'trillm:proxy_requests_in_flight{role="decode",server="http://d1"} 0.0',
            'trillm:proxy_server_rests{role="decode",server="http://d0"} 1.0',
            'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0',
        ):
            assert line in text.splitlines()
        assert (await proxy.ask(path="/load", method="GET")).json == {"server_load": 0}
        assert set((await proxy.ask(path="/version", method="GET")).json) == {"version"}
