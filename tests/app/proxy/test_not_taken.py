"""A decode server that does not take over what a prefill server has computed."""

from __future__ import annotations

import json

import pytest
import trio

from tests.helpers.fake_upstreams import EVENTS, TRANSFER, Talk, answers, open_proxy_under_test, refuses

BODY = {"model": "m", "prompt": "Hi", "max_tokens": 9}
WAYS = 'trillm:proxy_answers_total{way="%s"}'


def takes_nothing_over(status: int, param: str = "kv_transfer_params"):
    async def script(talk: Talk) -> None:
        if "kv_transfer_params" in talk.received.json:
            await talk.whole({"error": {"message": "It cannot.\nNo", "type": "t", "param": param, "code": "c"}}, status)
        else:
            await answers(talk)

    return script


NOT_TAKEN = {
    501: "has no KV connector: it needs a --kv-transfer-config",
    400: r"does not take over: It cannot.\nNo",
}


@pytest.mark.parametrize("status", NOT_TAKEN)
async def test_a_decode_server_that_cannot_take_over_computes_the_prompt_and_is_told_of(status, caplog, autojump_clock):
    async with open_proxy_under_test(decode=[takes_nothing_over(status)]) as proxy:
        for seconds in (0, 59, 2):
            await trio.sleep(seconds)
            assert (await proxy.ask(BODY | {"stream": True})).data == EVENTS
        asked = BODY | {"stream": True}
        assert [one.json for one in proxy.requests("d0")] == [asked | {"kv_transfer_params": TRANSFER}, asked] * 3
        assert [await proxy.count(WAYS % way) for way in ("handed_over", "not_taken")] == [0, 3]
        assert proxy.upstreams["d0"].num_connections == 1
    told = f"decode server http://d0 {NOT_TAKEN[status]}; the prompt is computed there"
    assert [record.message for record in caplog.records if record.name == "trillm.proxy"] == [told] * 2


async def test_a_decode_server_that_cannot_take_over_and_then_is_busy_leaves_the_prompt_to_another_one():
    async def is_busy(talk: Talk) -> None:
        await (refuses(503) if "kv_transfer_params" not in talk.received.json else takes_nothing_over(501))(talk)

    async with open_proxy_under_test(decode=[is_busy, answers]) as proxy:
        assert (await proxy.ask(BODY)).status_code == 200
        assert [one.json for one in proxy.requests("d1")] == [BODY]


def usage(num_cached_tokens: int | None) -> dict:
    details = None if num_cached_tokens is None else {"cached_tokens": num_cached_tokens}
    return {"prompt_tokens": 40, "prompt_tokens_details": details, "total_tokens": 42}


@pytest.mark.parametrize(("cached", "way"), [(0, "not_taken"), (32, "handed_over"), (None, "handed_over")])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_decode_server_found_nothing_of_was_not_taken_where_it_says_so(cached, way, stream):
    async def tells_usage(talk: Talk) -> None:
        words = [{"choices": [{"text": json.dumps({"usage": usage(0)})}]}] * 50
        if stream:
            told = [*words, {"choices": [], "usage": usage(cached)}]
            await talk.events(
                b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in told) + b"data: [DONE]\n\n"
            )
        else:
            await talk.whole({"choices": words, "usage": usage(cached), "kv_transfer_params": None})

    async with open_proxy_under_test(decode=[tells_usage]) as proxy:
        assert (await proxy.ask(BODY | {"stream": stream})).status_code == 200
        assert await proxy.count(WAYS % way) == 1
        await proxy.ask(BODY | {"stream": stream, "n": 2})
        assert await proxy.count(WAYS % "one_server") == 1


@pytest.mark.parametrize("status", [400, 422, 501])
async def test_a_refusal_of_something_else_is_passed_on_at_once(status):
    async with open_proxy_under_test(decode=[takes_nothing_over(status, "logit_bias")]) as proxy:
        reply = await proxy.ask(BODY)
        assert (reply.status_code, reply.json["error"]["param"]) == (status, "logit_bias")
        assert len(proxy.requests("d0")) == 1
        assert await proxy.count(WAYS % "handed_over") == 1


async def test_what_a_decode_server_refuses_also_without_the_field_is_refused():
    async with open_proxy_under_test() as proxy:
        script = {"error": {"message": "no", "param": "kv_transfer_params"}}
        proxy.upstreams["d0"].script = lambda talk: talk.whole(script, 501)
        assert (await proxy.ask(BODY)).status_code == 501
        assert len(proxy.requests("d0")) == 2
