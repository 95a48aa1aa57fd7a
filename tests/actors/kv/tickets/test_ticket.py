from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.kv.lending import FetchError
from actors.kv.ticket import GRACE_SECONDS, check, seconds_from_now, sign
from protocol.errors import BadRequestError
from protocol.ids import Epoch
from protocol.kv import KV_VERSION
from protocol.kv_ticket import MAX_TICKET_BYTES, KvTicket, read_ticket

KEY = b"k" * 32
OTHER = b"o" * 32
TICKET = KvTicket(
    KV_VERSION, "engine", Epoch(3), "lease", b"d" * 32, 7, 16, 0.0, host="10.0.0.1", port=7000, path="/x", boot_id="b"
)


def ticket(**changes) -> KvTicket:
    return msgspec.structs.replace(TICKET, **{"expires_at": seconds_from_now(10)} | changes)


def test_a_ticket_is_read_as_it_was_signed():
    written = ticket()

    assert check(sign(written, KEY), KEY, []) == written


def test_the_words_are_readable_without_the_key():
    assert read_ticket(sign(ticket(num_blocks=5), KEY)).num_tokens == 80


def test_a_ticket_signed_with_another_key_is_refused():
    with pytest.raises(FetchError) as caught:
        check(sign(ticket(), OTHER), KEY, ["10.0.0.1:7001", "10.0.0.2:7000"])

    assert caught.value.kind == "refused"


def test_of_a_ticket_with_another_signature_an_allowed_address_is_used_and_no_path():
    found = check(sign(ticket(), OTHER), KEY, ["10.0.0.1:7000"])

    assert (found.host, found.port, found.path) == ("10.0.0.1", 7000, None)


def test_an_address_of_ipv6_is_allowed_as_it_stands_in_urls():
    assert check(sign(ticket(host="::1"), OTHER), KEY, ["[::1]:7000"]).host == "::1"


def test_a_ticket_is_valid_for_a_minute_more_as_clocks_differ():
    check(sign(ticket(expires_at=time.time() - GRACE_SECONDS + 5), KEY), KEY, [])

    with pytest.raises(FetchError) as caught:
        check(sign(ticket(expires_at=time.time() - GRACE_SECONDS - 5), KEY), KEY, [])
    assert caught.value.kind == "expired"


def test_a_ticket_of_another_version_is_refused():
    with pytest.raises(FetchError, match=f"version {KV_VERSION + 1}") as caught:
        check(sign(ticket(version=KV_VERSION + 1), KEY), KEY, [])
    assert caught.value.kind == "refused"


def test_a_ticket_that_would_be_too_long_is_not_made():
    with pytest.raises(ValueError, match=str(MAX_TICKET_BYTES)):
        sign(ticket(path="x" * MAX_TICKET_BYTES), KEY)


@given(st.integers(min_value=0), st.integers(1, 255))
def test_whichever_byte_is_changed_the_ticket_is_refused(place, change):
    signed = bytearray(sign(ticket(), KEY))
    signed[place % len(signed)] ^= change

    with pytest.raises(FetchError) as caught:
        check(bytes(signed), KEY, [])
    assert caught.value.kind == "refused"


def test_lists_in_lists_are_no_ticket():
    words = msgspec.msgpack.encode(TICKET)
    deep = bytes([words[0] + 1]) + words[1:] + b"\x91" * 1900 + b"\xc0"  # one more element

    with pytest.raises(BadRequestError):
        read_ticket(b"m" * 32 + deep)


@given(st.binary(max_size=2 * MAX_TICKET_BYTES))
def test_any_bytes_are_refused(garbage):
    with pytest.raises(FetchError) as caught:
        check(garbage, KEY, ["10.0.0.1:7000"])
    assert caught.value.kind == "refused"
    with pytest.raises(BadRequestError):
        read_ticket(garbage)
