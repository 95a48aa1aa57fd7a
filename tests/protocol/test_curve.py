"""What is said over tcp is said to whom we know, and to nobody else; what strangers send reaches nobody."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import zmq
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import ENGINE_INPUT, ENGINE_OUTPUT
from protocol.curve import judge, split_address, with_key
from protocol.engine_stats import EngineStats
from protocol.links import Links, UnprotectedLinkError, derive_curve_keys, make_curve_keys, open_links
from protocol.messages import AbortRequest, EngineHeartbeat

ANYWHERE = "tcp://127.0.0.1:0"


def a_message(number: int) -> AbortRequest:
    return AbortRequest(1, 0, [str(number)])


# ---------------------------------------------------------------------- pure


def test_an_address_says_whose_key_has_to_answer_there():
    key = bytes(range(32))

    assert split_address(with_key("tcp://[::1]:5", key)) == ("tcp://[::1]:5", key)
    assert split_address("tcp://10.0.0.1:5") == ("tcp://10.0.0.1:5", None)
    for wrong in ("tcp://h:1?key=", "tcp://h:1?key=00", "tcp://h:1?key=zz", "tcp://h:1?key=" + "00" * 33):
        with pytest.raises(ValueError):
            split_address(wrong)


def test_a_secret_key_is_not_shown_with_what_holds_it():
    keys = make_curve_keys()

    assert keys.secret_key.hex() not in repr(keys)
    assert repr(keys.secret_key) not in f"{[keys]}"


def question(key: bytes, mechanism: bytes = b"CURVE", version: bytes = b"1.0") -> list[bytes]:
    return [version, b"7", b"trillm", b"10.0.0.9", b"", mechanism, key]


def test_only_a_known_key_over_curve_comes_in():
    known, stranger = bytes(32), b"x" * 32

    assert judge(question(known), [known])[:3] == [b"1.0", b"7", b"200"]
    for asked in (
        question(stranger),
        question(known, mechanism=b"PLAIN"),
        question(known, mechanism=b"NULL")[:6],
        question(known, version=b"2.0"),
    ):
        assert judge(asked, [known])[:3] == [b"1.0", b"7", b"400"]
    assert judge(question(known), [])[2] == b"400"


@given(st.lists(st.binary(max_size=40), max_size=9))
def test_no_other_question_lets_anybody_in(frames):
    assert judge(frames, [b"k" * 32])[2] != b"200"


# ---------------------------------------------------------------------- over sockets


@contextmanager
def two_processes(admits: bool = True) -> Iterator[tuple[Links, Links]]:
    """The links of who binds and of who connects; whether the one knows the other's key."""
    connecting = make_curve_keys()
    binding = make_curve_keys([connecting.public_key] if admits else [])
    with open_links(binding) as server, open_links(connecting) as client:
        yield server, client


@pytest.mark.parametrize("address", [ANYWHERE, with_key(ANYWHERE, bytes(32)), "tcp://127.0.0.1:1"])
def test_without_keys_there_is_no_tcp(address):
    with open_links() as links:
        for make in (links.pull, links.push):
            with pytest.raises(UnprotectedLinkError, match="needs keys"):
                make(address, ENGINE_INPUT)


def test_nobody_is_connected_to_without_a_key_that_has_to_answer():
    with open_links(make_curve_keys()) as links:
        with pytest.raises(UnprotectedLinkError, match="does not say whose key"):
            links.push("tcp://127.0.0.1:1", ENGINE_INPUT)
        with pytest.raises(UnprotectedLinkError, match="a key that is none"):
            links.push("tcp://127.0.0.1:1?key=abc", ENGINE_INPUT)
        for other in ("udp://127.0.0.1:1", "ws://127.0.0.1:1", "inproc://x", "127.0.0.1:1"):
            with pytest.raises(UnprotectedLinkError, match="links are ipc"):
                links.push(other, ENGINE_INPUT)


@pytest.mark.process
async def test_who_is_known_is_heard_in_order_and_once():
    with two_processes() as (server, client):
        inbox = server.pull(ANYWHERE, ENGINE_INPUT)
        sender = client.push(inbox.address, ENGINE_INPUT)
        for number in range(500):
            sender.send_nowait(a_message(number))

        assert [await inbox.receive() for _ in range(500)] == [a_message(n) for n in range(500)]


@pytest.mark.process
async def test_a_publisher_over_tcp_sees_its_subscriber_come_and_go():
    with two_processes() as (server, client):
        publisher = server.publish(ANYWHERE, ENGINE_OUTPUT)
        subscriber = client.subscribe(publisher.address, ENGINE_OUTPUT)
        async with trio.open_nursery() as nursery:
            heard = []

            async def hear():
                heard.append(await subscriber.receive())
                subscriber.close()

            nursery.start_soon(hear)
            assert await publisher.receive() is True
            publisher.send_nowait(EngineHeartbeat(1, 0, 5, EngineStats()))
            assert await publisher.receive() is False
        assert heard[0].next_seq == 5


@pytest.mark.process
async def test_links_within_the_machine_are_as_they_were_also_with_keys(tmp_path: Path):
    with two_processes() as (server, client):
        inbox = server.pull(f"ipc://{tmp_path}/s", ENGINE_INPUT)
        assert inbox.address == f"ipc://{tmp_path}/s"
        client.push(inbox.address, ENGINE_INPUT).send_nowait(a_message(1))

        assert await inbox.receive() == a_message(1)


async def is_silent(inbox) -> bool:
    """Nothing comes, not even garbage."""
    with trio.move_on_after(0.4):
        await inbox.receive()
    return inbox.statistics().frames == 0


@pytest.mark.process
async def test_who_is_not_known_is_not_heard(caplog):
    with two_processes(admits=False) as (server, client):
        inbox = server.pull(ANYWHERE, ENGINE_INPUT)
        client.push(inbox.address, ENGINE_INPUT).send_nowait(a_message(1))

        assert await is_silent(inbox)
    assert "its key is not admitted" in caplog.text


@pytest.mark.process
async def test_who_takes_another_for_the_server_says_nothing_to_it():
    with two_processes() as (server, client):
        inbox = server.pull(ANYWHERE, ENGINE_INPUT)
        endpoint, _ = split_address(inbox.address)
        other = make_curve_keys().public_key
        client.push(with_key(endpoint, other), ENGINE_INPUT).send_nowait(a_message(1))

        assert await is_silent(inbox)


@pytest.mark.process
async def test_who_speaks_without_a_key_or_in_bytes_of_its_own_is_not_heard_and_harms_nobody():
    chance = random.Random(5)
    with two_processes() as (server, client), zmq.Context() as context, context.socket(zmq.PUSH) as naked:
        inbox = server.pull(ANYWHERE, ENGINE_INPUT)
        endpoint, _ = split_address(inbox.address)
        naked.setsockopt(zmq.LINGER, 0)
        naked.connect(endpoint)
        naked.send(b"\x93\xadABORT_REQUEST\x01\x00\x91\xa11")
        place = (endpoint.split("//")[1].split(":")[0], int(endpoint.rpartition(":")[2]))
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01"
        strangers = []
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", greeting, greeting + b"CURVE" + bytes(15) + b"\x00" * 32):
            for _ in range(5):
                stranger = socket.create_connection(place)
                stranger.sendall(noise + chance.randbytes(chance.randrange(2000)))
                strangers.append(stranger)

        assert await is_silent(inbox)
        client.push(inbox.address, ENGINE_INPUT).send_nowait(a_message(2))
        assert await inbox.receive() == a_message(2)
        assert inbox.statistics().frames == 1
        for stranger in strangers:
            stranger.close()


@pytest.mark.process
async def test_with_nobody_at_the_door_nobody_comes_in():
    """As when its thread had died."""
    connecting = make_curve_keys()
    keys = make_curve_keys([connecting.public_key])
    context: zmq.Context = zmq.Context()
    server = Links(context, keys)
    with open_links(connecting) as client:
        inbox = server.pull(ANYWHERE, ENGINE_INPUT)
        client.push(inbox.address, ENGINE_INPUT).send_nowait(a_message(1))
        assert await is_silent(inbox)
    server.close()
    context.term()


def test_who_knows_a_secret_knows_the_keys_that_come_of_it_and_nobody_else_does():
    leading = derive_curve_keys(b"s" * 32, "host 0", ["another host"])
    other = derive_curve_keys(b"s" * 32, "another host", ["host 0"])
    assert leading == derive_curve_keys(b"s" * 32, "host 0", ["another host"])
    assert (leading.admitted, other.admitted) == ([other.public_key], [leading.public_key])
    assert len({leading.secret_key, leading.public_key, other.secret_key, other.public_key}) == 4
    stranger = derive_curve_keys(b"t" * 32, "another host", ["host 0"])
    assert stranger.public_key not in leading.admitted


async def test_keys_of_one_secret_open_a_link_and_those_of_another_do_not():
    leading = derive_curve_keys(b"s" * 32, "host 0", ["another host"])
    with (
        open_links(leading) as links,
        open_links(derive_curve_keys(b"s" * 32, "another host")) as others,
        open_links(derive_curve_keys(b"t" * 32, "another host")) as strangers,
    ):
        inbox = links.pull(ANYWHERE, ENGINE_INPUT)
        strangers.push(inbox.address, ENGINE_INPUT).send_nowait(a_message(1))
        others.push(inbox.address, ENGINE_INPUT).send_nowait(a_message(2))
        with trio.fail_after(5):
            assert await inbox.receive() == a_message(2)
        with pytest.raises(trio.WouldBlock):
            inbox.receive_nowait()
