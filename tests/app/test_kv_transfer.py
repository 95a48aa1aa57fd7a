"""`kv_transfer_params`: what is asked and told is vLLM's, and only a ticket says where anything lies."""

from __future__ import annotations

import base64

import msgspec
import pytest

from app.kv_transfer import KvPolicy, kv_params, told_transfer
from protocol.errors import BadRequestError, NotImplementedHereError
from protocol.ids import Epoch
from protocol.kv import KV_VERSION, KvParams
from protocol.kv_ticket import MAC_BYTES, KvTicket

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
