"""`kv_transfer_params`: what is asked and told is vLLM's, and only a ticket says where anything lies."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from app.kv_transfer import KvPolicy, kv_params, told_transfer
from protocol.errors import BadRequestError, NotImplementedHereError
from protocol.ids import Epoch
from protocol.kv import KV_VERSION, KvParams
from protocol.kv_ticket import MAC_BYTES, KvTicket
from tests.helpers.app_under_test import AppUnderTest, make_app

SERVED = KvPolicy(has_connectors=True)
TICKET = bytes(MAC_BYTES) + msgspec.msgpack.encode(
    KvTicket(KV_VERSION, "p", Epoch(3), "lease", b"layout", 5, 16, 1e9, "10.0.0.1", 14579)
)
OF_THE_PROXY = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def test_what_a_proxy_asks_the_prefilling_server() -> None:
    assert kv_params(OF_THE_PROXY, 1, SERVED) == KvParams(exports=True)


@pytest.mark.parametrize("asked", [None, {}, {"do_remote_decode": False}, {"remote_host": "x"}])
def test_what_asks_for_nothing_is_nothing(asked) -> None:
    assert kv_params(asked, 1, KvPolicy()) is None


def test_what_one_server_tells_the_other_is_asked() -> None:
    told = told_transfer(TICKET, "cmpl-1")
    assert told is not None
    assert told["remote_request_id"] == "cmpl-1"
    assert (told["remote_host"], told["remote_port"], told["remote_num_tokens"]) == ("10.0.0.1", 14579, 80)
    assert kv_params(told, 4, SERVED) == KvParams(TICKET)
    assert kv_params(told | {"remote_host": "evil"}, 1, SERVED) == KvParams(TICKET)
    assert kv_params(told, 1, KvPolicy(True, must_load=True)) == KvParams(TICKET, must_load=True)
    assert told_transfer(b"", "cmpl-1") is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"do_remote_decode": True, "do_remote_prefill": True}, "exclude each other"),
        ({"do_remote_prefill": True}, "needs the ticket"),
        ({"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 22}, "needs the ticket"),
        ({"do_remote_prefill": True, "ticket": "no ticket"}, "ticket is none"),
        ({"do_remote_prefill": True, "ticket": base64.urlsafe_b64encode(bytes(40)).decode()}, "ticket is none"),
        ({"do_remote_prefill": True, "ticket": "x" * 5000}, "ticket has 5000 characters"),
        ({"do_remote_prefill": 1}, "do_remote_prefill"),
        ({str(number): 1 for number in range(40)}, "has 40 fields; at most 32"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(asked, said) -> None:
    with pytest.raises(BadRequestError, match=said) as caught:
        kv_params(asked, 1, SERVED)
    assert caught.value.param == "kv_transfer_params"


def test_one_answer_only_is_kept_for_another_server() -> None:
    with pytest.raises(BadRequestError, match="not for 2 choices"):
        kv_params(OF_THE_PROXY, 2, SERVED)


def test_without_connectors_it_is_not_done() -> None:
    with pytest.raises(NotImplementedHereError, match="no KV connector"):
        kv_params(OF_THE_PROXY, 1, KvPolicy())


# ------------------------------------------------------------------ over HTTP


@pytest.fixture
def served() -> AppUnderTest:
    return make_app(kv_policy=SERVED, kv_ticket=TICKET)


@pytest.mark.parametrize("kind", ["chat", "complete"])
@pytest.mark.parametrize("streams", [False, True])
async def test_what_is_told_with_the_end_is_what_the_other_server_is_asked(served, kind, streams) -> None:
    ask = served.chat if kind == "chat" else served.complete
    reply = await ask(max_tokens=4, stream=streams, kv_transfer_params=OF_THE_PROXY)
    if streams:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        told = [event["kv_transfer_params"] for event in events if "kv_transfer_params" in event]
        assert len(told) == 1
        assert events[-1]["choices"][0]["finish_reason"] == "length"
    else:
        told = [reply.json["kv_transfer_params"]]
    assert told == [told_transfer(TICKET, json.loads(reply.text)["id"] if not streams else events[0]["id"])]
    await ask(max_tokens=4, kv_transfer_params=told[0])
    assert [prompt.kv for prompt in served.engine.prompts] == [KvParams(exports=True), KvParams(TICKET)]


@pytest.mark.parametrize("asked", [{}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}])
async def test_who_does_not_ask_is_told_nothing(served, asked) -> None:
    reply = await served.chat(max_tokens=4, **asked)
    assert "kv_transfer_params" not in reply.json
    assert served.engine.prompts[0].kv is None


async def test_where_nothing_could_be_kept_nothing_is_told() -> None:
    reply = await make_app(kv_policy=SERVED).chat(max_tokens=4, kv_transfer_params=OF_THE_PROXY)
    assert reply.status_code == 200
    assert "kv_transfer_params" not in reply.json


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"kv_transfer_params": {"do_remote_prefill": True}}, 400),
        ({"kv_transfer_params": OF_THE_PROXY, "n": 2}, 400),
        ({"kv_transfer_params": "ticket"}, 400),
    ],
)
async def test_a_refusal_names_the_field(served, fields, status) -> None:
    reply = await served.chat(**fields)
    assert reply.status_code == status
    assert "kv_transfer_params" in reply.json["error"]["message"]


async def test_a_server_without_connectors_says_so() -> None:
    reply = await make_app().complete(kv_transfer_params=OF_THE_PROXY)
    assert (reply.status_code, reply.json["error"]["param"]) == (501, "kv_transfer_params")


async def test_other_apis_have_no_such_field(served) -> None:
    """Their clients speak to one server; what they send of it is as good as any field that nobody knows."""
    message = {"role": "user", "content": "Hi"}
    await served.post("/v1/messages", messages=[message], max_tokens=4, kv_transfer_params=OF_THE_PROXY, model="alias")
    await served.post("/v1/responses", input="Hi", max_output_tokens=4, kv_transfer_params=OF_THE_PROXY)
    assert [prompt.kv for prompt in served.engine.prompts] == [None] * len(served.engine.prompts)
