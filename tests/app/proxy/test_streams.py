"""An answer goes through as it comes: whoever leaves, reads slowly, or breaks off in the midst of it."""

from __future__ import annotations

import json
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.proxy.whole_events import MOST_HELD_BYTES
from tests.helpers.fake_upstreams import (
    EVENTS,
    BreakOffError,
    Talk,
    answers,
    computes_prompts,
    open_proxy_under_test,
    says_nothing,
)

BODY = {"prompt": "Hi", "stream": True}
FIRST = b'data: {"text": "a"}\n\n'
MANY = 50


def begins(*pieces: bytes, kind: str = "text/event-stream"):
    """And then says nothing more."""

    async def begin(talk: Talk) -> None:
        await talk.head(content_type=kind)
        for piece in pieces:
            await talk.data(piece)
        await trio.sleep_forever()

    return begin


def breaks_off_after(*pieces: bytes, kind: str = "text/event-stream"):
    async def begin(talk: Talk) -> None:
        await talk.head(content_type=kind)
        for piece in pieces:
            await talk.data(piece)
        raise BreakOffError

    return begin


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        ("p0", says_nothing, answers),
        ("p0", begins(b'{"kv', kind="application/json"), answers),
        ("d0", computes_prompts, says_nothing),
        ("d0", computes_prompts, begins(FIRST)),
        ("d0", computes_prompts, begins(FIRST[:5])),
        ("d0", computes_prompts, begins(b"{", kind="application/json")),
    ],
    ids=["prefill", "prefill's answer", "decode", "stream", "event", "decode's answer"],
)
async def test_whoever_leaves_leaves_nothing_running_at_any_server(name, prefill, decode, stream):
    async with open_proxy_under_test([prefill], [decode]) as proxy:
        exchange = proxy.exchange(BODY | {"stream": stream})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            assert (proxy.num_in_flight, proxy.upstreams[name].num_left) == (1, 0)
            exchange.disconnected.set()
            await wait_all_tasks_blocked()
            assert (proxy.num_in_flight, proxy.upstreams[name].num_left) == (0, 1)
        assert await proxy.count(
            f'trillm:proxy_requests_total{{end="left",role="{"prefill" if name == "p0" else "decode"}",'
            f'server="http://{name}"}}'
        )


async def test_whoever_leaves_while_its_bytes_go_out_leaves_nothing_running():
    async with open_proxy_under_test(decode=[begins(FIRST)]) as proxy:
        exchange = proxy.exchange(BODY)
        exchange.blocked = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            exchange.disconnected.set()
            await wait_all_tasks_blocked()
            assert (proxy.num_in_flight, proxy.upstreams["d0"].num_left) == (0, 1)


async def test_who_does_not_read_holds_up_the_server_and_not_the_proxy():
    told = 0

    async def tells_much(talk: Talk) -> None:
        nonlocal told
        await talk.head(content_type="text/event-stream")
        for _ in range(MANY):
            await talk.data(FIRST)
            told += 1
        await talk.end()

    async with open_proxy_under_test(decode=[tells_much]) as proxy:
        exchange = proxy.exchange(BODY)
        exchange.blocked = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            assert told <= 1
            exchange.blocked.set()
        assert exchange.data == FIRST * MANY


async def test_an_event_goes_on_when_it_has_come_and_not_when_the_next_one_does():
    async with open_proxy_under_test(decode=[begins(FIRST[:7], FIRST[7:] + FIRST[:3])]) as proxy:
        exchange = proxy.exchange(BODY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            assert exchange.data == FIRST
            exchange.disconnected.set()


@pytest.mark.parametrize("half", [b"", FIRST[:9]])
async def test_a_stream_that_breaks_off_ends_with_an_error_event(half):
    async with open_proxy_under_test(decode=[breaks_off_after(FIRST, half), answers]) as proxy:
        reply = await proxy.ask(BODY)
        assert reply.status_code == 200
        events = reply.text.split("\n\n")
        assert (events[0], events[2:]) == (FIRST.decode().strip(), ["data: [DONE]", ""])
        assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "upstream_broken"
        assert proxy.requests("d1") == []
        assert await proxy.count('trillm:proxy_requests_total{end="broken",role="decode",server="http://d0"}') == 1


async def test_an_event_that_is_too_long_to_be_kept_back_is_closed_before_the_error():
    begun = b"data: " + b"x" * (MOST_HELD_BYTES + 1)
    async with open_proxy_under_test(decode=[breaks_off_after(begun)]) as proxy:
        events = (await proxy.ask(BODY)).data.split(b"\n\n")
        assert events[0] == begun
        assert b"upstream_broken" in events[1]


async def test_a_stream_of_anthropic_s_breaks_off_with_an_event_of_theirs():
    async with open_proxy_under_test(decode=[breaks_off_after(b"event: ping\ndata: {}\n\n")]) as proxy:
        reply = await proxy.ask(BODY, "/v1/messages")
        name, data = reply.text.split("\n\n")[1].split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"


async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one():
    async with open_proxy_under_test(decode=[breaks_off_after(b'{"choices":', kind="application/json")]) as proxy:
        exchange = proxy.exchange(BODY | {"stream": False})
        await exchange.run(proxy.app)
        assert exchange.data == b'{"choices":'
        assert exchange.sent[-1]["more_body"] is True


async def test_a_server_that_says_nothing_for_too_long_ends_the_stream(autojump_clock):
    async with open_proxy_under_test(decode=[begins(FIRST)], upstream_timeout=30) as proxy:
        reply = await proxy.ask(BODY)
        assert "upstream_late" in reply.text
        assert proxy.upstreams["d0"].num_left == 1


async def test_a_connection_is_used_again_and_not_after_it_was_left():
    async with open_proxy_under_test() as proxy:
        for _ in range(3):
            assert (await proxy.ask(BODY)).data == EVENTS
        assert [one.num_connections for one in proxy.upstreams.values()] == [1, 1]
        proxy.upstreams["d0"].script = begins(FIRST)
        exchange = proxy.exchange(BODY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            exchange.disconnected.set()
        proxy.upstreams["d0"].script = answers
        assert (await proxy.ask(BODY)).data == EVENTS
        assert [one.num_connections for one in proxy.upstreams.values()] == [1, 2]


@pytest.mark.parametrize(
    ("method", "beyond"), [("HEAD", b"{}"), ("GET", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")]
)
async def test_what_a_server_says_beyond_its_answer_is_told_to_nobody(method, beyond):
    told = b"" if method == "HEAD" else b"{}"

    async def says_more(talk: Talk) -> None:
        await talk.stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + told + beyond)
        await trio.sleep_forever()

    async with open_proxy_under_test(decode=[says_more]) as proxy:
        for num_asked in range(1, 4):
            assert (await proxy.ask(path="/v1/models", method=method)).data == told
            assert proxy.upstreams["d0"].num_connections == num_asked


async def test_a_drain_takes_nothing_more_and_lets_what_runs_finish():
    held = trio.Event()

    async def answers_later(talk: Talk) -> None:
        await held.wait()
        await answers(talk)

    async with open_proxy_under_test(decode=[answers_later]) as proxy:
        exchange = proxy.exchange(BODY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            proxy.draining.begin()
            assert (await proxy.ask(BODY)).status_code == 503
            assert (await proxy.ask(path="/v1/models", method="GET")).status_code == 503
            held.set()
        assert exchange.data == EVENTS


@pytest.mark.parametrize(("prefill", "decode"), [(says_nothing, answers), (computes_prompts, says_nothing)])
async def test_the_end_of_a_drain_refuses_what_has_not_begun(prefill, decode):
    async with open_proxy_under_test([prefill], [decode]) as proxy:
        exchange = proxy.exchange(BODY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            proxy.ending.begin()
        assert exchange.status == 503


async def test_the_end_of_a_drain_ends_streams_with_an_error_event():
    async with open_proxy_under_test(decode=[begins(FIRST)]) as proxy:
        exchange = proxy.exchange(BODY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            proxy.ending.begin()
        assert b"the server is shutting down" in exchange.data
        assert exchange.data.endswith(b"data: [DONE]\n\n")
        assert proxy.upstreams["d0"].num_left == 1


async def test_a_trial_whose_client_leaves_is_no_trial():
    """Or nobody would ask that server ever again."""
    async with open_proxy_under_test() as proxy:
        [server] = proxy.forwarding.prefill
        server.has_failed(trio.current_time() - 60)
        proxy.upstreams["p0"].script = says_nothing
        exchange = proxy.exchange(BODY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, proxy.app)
            await wait_all_tasks_blocked()
            nursery.start_soon(partial(proxy.ask, BODY))
            await wait_all_tasks_blocked()
            assert len(proxy.requests("p0")) == 1  # the other one went to the decode server alone
            exchange.disconnected.set()
        proxy.upstreams["p0"].script = computes_prompts
        await proxy.ask(BODY)
        assert len(proxy.requests("p0")) == 2
