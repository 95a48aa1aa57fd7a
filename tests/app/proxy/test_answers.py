"""A request for an answer goes by two servers, or by those that are left."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers.fake_upstreams import (
    EVENTS,
    TRANSFER,
    Talk,
    answers,
    breaks_off,
    computes_prompts,
    open_proxy_under_test,
    refuses,
    says_nothing,
)

BODY = {"model": "m", "prompt": "Hi", "max_tokens": 9, "min_tokens": 4, "seed": 5}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 9, "stream": True}
WAYS = 'trillm:proxy_answers_total{way="%s"}'


async def test_one_server_computes_the_prompt_and_another_one_goes_on():
    async with open_proxy_under_test() as proxy:
        reply = await proxy.ask(BODY | {"stream": True, "stream_options": {"include_usage": True}}, x_request_id="r1")
        assert (reply.status_code, reply.data) == (200, EVENTS)
        [first], [second] = proxy.requests("p0"), proxy.requests("d0")
        assert first.json == {
            "model": "m",
            "prompt": "Hi",
            "max_tokens": 1,
            "seed": 5,
            "stream": False,
            "kv_transfer_params": {
                "do_remote_decode": True,
                "do_remote_prefill": False,
                "remote_engine_id": None,
                "remote_block_ids": None,
                "remote_host": None,
                "remote_port": None,
            },
        }
        asked = BODY | {"stream": True, "stream_options": {"include_usage": True}, "kv_transfer_params": TRANSFER}
        assert second.json == asked
        assert first.values("x-request-id") == second.values("x-request-id") == ["r1"]
        assert await proxy.count(WAYS % "handed_over") == 1
        assert await proxy.count("trillm:proxy_prefill_seconds_count") == 1
        assert await proxy.count('trillm:proxy_requests_total{end="answered",role="decode",server="http://d0"}') == 1


async def test_a_chat_is_bounded_to_one_token_by_both_names_of_the_bound():
    async with open_proxy_under_test() as proxy:
        assert (await proxy.ask(CHAT, "/v1/chat/completions")).data == EVENTS
        asked = proxy.requests("p0")[0].json
        assert (asked["max_tokens"], asked["max_completion_tokens"], asked["stream"]) == (1, 1, False)
        assert proxy.requests("d0")[0].json == CHAT | {"kv_transfer_params": TRANSFER}


async def test_what_a_prefill_server_keeps_nothing_of_is_computed_by_the_decode_server():
    async def keeps_nothing(talk: Talk) -> None:
        await talk.whole({"choices": [], "kv_transfer_params": None})

    async with open_proxy_under_test([keeps_nothing]) as proxy:
        assert (await proxy.ask(BODY)).json == {"choices": [{"text": "ab"}]}
        assert proxy.requests("d0")[0].json == BODY
        assert await proxy.count(WAYS % "not_kept") == 1


@pytest.mark.parametrize("broken", [breaks_off, refuses(500), refuses(503), refuses(429), refuses(302)])
async def test_another_prefill_server_is_asked_when_one_fails(broken):
    async with open_proxy_under_test([broken, computes_prompts]) as proxy:
        assert (await proxy.ask(BODY)).status_code == 200
        assert proxy.requests("d0")[0].json == BODY | {"kv_transfer_params": TRANSFER}
        assert (await proxy.ask(BODY)).status_code == 200
        assert [len(proxy.requests(name)) for name in ("p0", "p1")] == [1, 2]  # it rests meanwhile


def told(transfer: bytes) -> bytes:
    """A prefill server's answer with it."""
    return b'{"kv_transfer_params": ' + transfer + b"}"


NONSENSE = {
    "text": b"no JSON",
    "list": b"[]",
    "endless": b"x" * (17 * 2**20),
    "no object": told(b'"ticket"'),
    "no UTF-8": told(b'{"ticket": "\xff"}'),
    "deep": told(b'{"remote_block_ids": ' + b"[" * 99 + b"]" * 99 + b"}"),
    "far too deep": told(b"[" * 100_000 + b"]" * 100_000),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
async def test_a_prefill_server_that_answers_nonsense_has_failed(answer):
    async def talks_nonsense(talk: Talk) -> None:
        await talk.whole(answer)

    async with open_proxy_under_test([talks_nonsense]) as proxy:
        assert (await proxy.ask(BODY)).status_code == 200
        assert proxy.requests("d0")[0].json == BODY
        assert await proxy.count('trillm:proxy_server_rests{role="prefill",server="http://p0"}') == 1


async def test_without_any_prefill_server_the_decode_server_computes_the_prompt(caplog):
    async with open_proxy_under_test([computes_prompts, computes_prompts]) as proxy:
        for name in ("p0", "p1"):
            proxy.upstreams[name].is_reachable = False
        for _ in range(3):
            assert (await proxy.ask(BODY)).status_code == 200
        assert [one.json for one in proxy.requests("d0")] == [BODY] * 3
        assert await proxy.count(WAYS % "recomputed") == 3
    told = [record.message for record in caplog.records if "rests" in record.message]
    assert told == [
        f"prefill server http://p{n} is unreachable: Connection refused; it rests for 5 s" for n in range(2)
    ]


async def test_a_prefill_server_that_is_well_again_is_asked_again(autojump_clock, caplog):
    caplog.set_level("INFO", logger="trillm.proxy")
    async with open_proxy_under_test() as proxy:
        proxy.upstreams["p0"].is_reachable = False
        await proxy.ask(BODY)
        proxy.upstreams["p0"].is_reachable = True
        await trio.sleep(5.1)
        for _ in range(2):
            await proxy.ask(BODY)
        assert await proxy.count(WAYS % "handed_over") == 2
    assert [record.message for record in caplog.records if record.name == "trillm.proxy"] == [
        "prefill server http://p0 is unreachable: Connection refused; it rests for 5 s",
        "prefill server http://p0 is back",
    ]


async def test_a_prompt_that_is_not_computed_in_time_is_computed_by_the_decode_server(autojump_clock):
    async with open_proxy_under_test([says_nothing, computes_prompts], prefill_timeout=20) as proxy:
        assert (await proxy.ask(BODY)).status_code == 200
        assert trio.current_time() == pytest.approx(20, abs=1)
        assert (len(proxy.requests("p1")), proxy.upstreams["p0"].num_left) == (0, 1)
        assert proxy.requests("d0")[0].json == BODY


async def test_what_a_prefill_server_refuses_is_refused():
    async with open_proxy_under_test([refuses(400, "prompt is missing")]) as proxy:
        reply = await proxy.ask(BODY)
        assert (reply.status_code, reply.json) == (400, {"error": {"message": "prompt is missing"}})
        assert proxy.requests("d0") == []
        assert await proxy.count(WAYS % "refused") == 1


@pytest.mark.parametrize("status", [400, 404, 500, 504])
async def test_what_a_decode_server_refuses_is_passed_on_as_it_is(status):
    async with open_proxy_under_test(decode=[refuses(status), answers]) as proxy:
        reply = await proxy.ask(BODY)
        assert (reply.status_code, reply.json) == (status, {"error": {"message": "no"}})
        assert reply.headers["Retry-After"] == "7"
        assert proxy.requests("d1") == []


async def test_another_decode_server_is_asked_when_one_cannot_be_reached():
    async with open_proxy_under_test(decode=[answers, answers]) as proxy:
        proxy.upstreams["d0"].is_reachable = False
        assert (await proxy.ask(BODY)).status_code == 200
        assert proxy.requests("d1")[0].json == BODY | {"kv_transfer_params": TRANSFER}


async def test_another_decode_server_computes_what_one_has_broken_off_before_it_said_anything():
    """The first may have fetched the KV already, which is given away once."""
    async with open_proxy_under_test(decode=[breaks_off, answers]) as proxy:
        assert (await proxy.ask(BODY)).status_code == 200
        assert proxy.requests("d0")[0].json == BODY | {"kv_transfer_params": TRANSFER}
        assert proxy.requests("d1")[0].json == BODY
        assert [await proxy.count(WAYS % way) for way in ("handed_over", "not_taken")] == [0, 1]


async def test_another_decode_server_is_asked_when_one_is_busy_and_the_refusal_told_when_all_are():
    async with open_proxy_under_test(decode=[refuses(503, "full"), answers]) as proxy:
        assert (await proxy.ask(BODY)).status_code == 200
        assert proxy.requests("d1")[0].json == BODY | {"kv_transfer_params": TRANSFER}
        proxy.upstreams["d1"].script = refuses(503, "full, too")
        reply = await proxy.ask(BODY)
        assert (reply.status_code, reply.json) == (503, {"error": {"message": "full, too"}})


async def test_a_server_that_is_busy_is_back_where_it_had_failed(caplog):
    caplog.set_level("INFO", logger="trillm.proxy")
    async with open_proxy_under_test(decode=[breaks_off]) as proxy:
        for script in (breaks_off, refuses(503), refuses(503)):
            proxy.upstreams["d0"].script = script
            await proxy.ask(BODY)
    failure, back = (record.message for record in caplog.records if record.name == "trillm.proxy")
    assert (" is broken: " in failure, back) == (True, "decode server http://d0 is back")


async def test_a_refusal_is_told_when_the_other_server_cannot_be_reached():
    async with open_proxy_under_test(decode=[refuses(503, "full"), answers]) as proxy:
        proxy.upstreams["d1"].is_reachable = False
        reply = await proxy.ask(BODY)
        assert (reply.status_code, reply.json) == (503, {"error": {"message": "full"}})


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [(None, 503, "upstream_unreachable"), (breaks_off, 502, "upstream_broken"), (says_nothing, 504, "upstream_late")],
)
async def test_that_no_decode_server_answers_is_an_error_of_its_own(script, status, code, autojump_clock):
    async with open_proxy_under_test(decode=[script or answers] * 2, upstream_timeout=30) as proxy:
        for name in ("d0", "d1"):
            proxy.upstreams[name].is_reachable = script is not None
        reply = await proxy.ask(BODY)
        assert (reply.status_code, reply.json["error"]["code"]) == (status, code)
        assert "d0" not in reply.text
        assert "d1" not in reply.text
        reply = await proxy.ask(BODY)  # also those that rest are asked where there are no others
        assert reply.status_code == status


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"best_of": 3},
        {"n": "two"},
        {"echo": True},
        {"prompt_logprobs": 0},
        {"truncate_prompt_tokens": -1},
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": []},
        {"prompt": None},
        {"prompt": 5},
    ],
)
async def test_what_cannot_be_handed_over_goes_to_a_decode_server_alone(fields):
    async with open_proxy_under_test() as proxy:
        assert (await proxy.ask(BODY | fields)).status_code == 200
        assert proxy.requests("p0") == []
        assert proxy.requests("d0")[0].json == BODY | fields
        assert await proxy.count(WAYS % "one_server") == 1


async def test_a_short_request_goes_to_a_decode_server_alone_where_that_is_asked_for():
    async with open_proxy_under_test(prefill_min_bytes=1000) as proxy:
        await proxy.ask(BODY)
        await proxy.ask(BODY | {"prompt": "x" * 1000})
        assert [len(one.body) > 1000 for one in proxy.requests("p0")] == [True]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", 400),
        (b'{"prompt": "\xff"}', 400),
        (b'{"prompt": "a", "kv_transfer_params": {"do_remote_prefill": true}}', 400),
        (b'{"prompt": "' + b"a" * 5000 + b'"}', 413),
    ],
)
async def test_a_bad_body_reaches_no_server(body, status):
    async with open_proxy_under_test(max_body_bytes=4096) as proxy:
        reply = await proxy.ask(body)
        assert (reply.status_code, set(reply.json["error"])) == (status, {"message", "type", "param", "code"})
        assert proxy.requests("p0") == proxy.requests("d0") == []


async def test_numbers_and_texts_go_on_as_they_were_spelt():
    body = b'{"prompt": "\\u00e9\\ud83d\\ude00", "temperature": 0.70000000000000000001, "seed": 18446744073709551616}'
    async with open_proxy_under_test() as proxy:
        await proxy.ask(body)
        for name in ("p0", "d0"):
            [had] = proxy.requests(name)
            for piece in (b'"\\u00e9\\ud83d\\ude00"', b"0.70000000000000000001", b"18446744073709551616"):
                assert piece in had.body


async def test_requests_go_to_the_servers_that_have_fewest():
    held = trio.Event()

    async def answers_later(talk: Talk) -> None:
        await held.wait()
        await answers(talk)

    opened = open_proxy_under_test([computes_prompts] * 2, [answers_later] * 3)
    async with opened as proxy, trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(partial(proxy.ask, BODY))
        await wait_all_tasks_blocked()
        assert [len(proxy.requests(name)) for name in ("p0", "p1", "d0", "d1", "d2")] == [3, 3, 2, 2, 2]
        held.set()
