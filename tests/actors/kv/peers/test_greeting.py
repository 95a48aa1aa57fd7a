from __future__ import annotations

import socket
from contextlib import contextmanager

import msgspec
import pytest
import trio

from actors.kv.greeting import Challenge, OwnerFacts, Proof, Proven, greet_owner, greet_reader
from actors.kv.lending import FetchError
from actors.kv.wire import Wire
from protocol.ids import Epoch
from protocol.kv import KV_VERSION
from protocol.kv_ticket import KvTicket
from tests.helpers.kv_peers import KEY, layout

FACTS = OwnerFacts(KV_VERSION, "engine", Epoch(1), b"d" * 32, 256)
TICKET = KvTicket(KV_VERSION, "engine", Epoch(1), "lease", b"d" * 32, 1, 16, 0.0)
encode = msgspec.msgpack.encode


@contextmanager
def wires():
    one, other = map(Wire, socket.socketpair())
    try:
        yield one, other
    finally:
        one.close()
        other.close()


async def kinds(reader_key: bytes, owner_key: bytes) -> list[str]:
    """Why each side gave up: the reader and the owner; empty if it did not."""
    found = ["", ""]

    async def note(place, wire, greet, *arguments):
        try:
            await greet(wire, *arguments)
        except FetchError as error:
            found[place] = error.kind
            wire.close()

    with trio.fail_after(5), wires() as (one, other):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, 0, one, greet_owner, reader_key)
            nursery.start_soon(note, 1, other, greet_reader, owner_key, FACTS)
    return found


async def test_who_has_the_key_is_told_who_answers():
    with wires() as (one, other):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greet_reader, other, KEY, FACTS)
            assert await greet_owner(one, KEY) == FACTS


async def test_with_different_keys_both_refuse():
    assert await kinds(KEY, b"x" * 32) == ["refused", "refused"]


async def test_an_owner_without_the_key_is_refused_even_if_it_takes_every_proof():
    with wires() as (one, other):
        async with trio.open_nursery() as nursery:

            async def impostor():
                await other.send(encode(Challenge(b"n" * 32)))
                proof = msgspec.msgpack.decode(await other.receive(1024), type=Proof)
                await other.send(encode(Proven(encode(FACTS), proof.mac)))  # the reader's own

            nursery.start_soon(impostor)
            with pytest.raises(FetchError) as caught:
                await greet_owner(one, KEY)
    assert caught.value.kind == "refused"


async def test_a_proof_that_was_good_before_is_refused_the_next_time():
    class Recording:
        """What the reader says, as somebody on the way hears it."""

        def __init__(self, wire):
            self.wire = wire
            self.said = b""

        async def send(self, message):
            self.said = message
            await self.wire.send(message)

        async def receive(self, most):
            return await self.wire.receive(most)

    with wires() as (one, other):
        recording = Recording(one)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greet_reader, other, KEY, FACTS)
            await greet_owner(recording, KEY)
    with wires() as (one, other):
        await one.send(recording.said)
        with pytest.raises(FetchError) as caught:
            await greet_reader(other, KEY, FACTS)
    assert caught.value.kind == "refused"


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1", b"GET / HTTP/1.1\r\n\r\n", encode(["PROOF", b"short", b""]), b"x" * 1024]
)
async def test_garbage_is_no_greeting(garbage):
    for greet, arguments in ((greet_owner, (KEY,)), (greet_reader, (KEY, FACTS))):
        with wires() as (one, other):
            await other.send(garbage)
            with pytest.raises(FetchError) as caught:
                await greet(one, *arguments)
            assert caught.value.kind in ("broken", "refused")


async def test_a_long_greeting_is_not_even_received():
    with wires() as (one, other):
        await other.send(b"x" * 1025)
        with pytest.raises(FetchError, match="1025 bytes where there may be 1024"):
            await greet_owner(one, KEY)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"version": KV_VERSION + 1}, "layout"),
        ({"engine_id": "another"}, "unreachable"),
        ({"kv_epoch": Epoch(2)}, "expired"),
        ({"layout_digest": b"e" * 32}, "layout"),
        ({"frame_bytes": 512}, "layout"),
    ],
)
def test_who_answers_has_to_be_who_gave_the_ticket_and_have_what_we_need(changes, kind):
    FACTS.check(TICKET, layout())

    with pytest.raises(FetchError) as caught:
        msgspec.structs.replace(FACTS, **changes).check(TICKET, layout())
    assert caught.value.kind == kind
