"""Where ranks meet is read strictly, and an address is listened on alone."""

from __future__ import annotations

import socket

import pytest

from gpu.groups.rendezvous import Place, Rendezvous
from protocol.errors import StartError

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_a_file_is_for_one_host():
    rendezvous = Rendezvous.parse("file:///run/trillm/ranks-0-3")
    assert rendezvous == Rendezvous(path="/run/trillm/ranks-0-3")
    assert rendezvous.is_on_one_host


@pytest.mark.parametrize(
    ("text", "host", "port", "name"),
    [
        ("tcp://127.0.0.1:29500/epoch-3", "127.0.0.1", 29500, "epoch-3"),
        ("tcp://first.cluster:1", "first.cluster", 1, ""),
        ("tcp://[::1]:29500/x", "::1", 29500, "x"),
    ],
)
def test_an_address_is_for_several(text, host, port, name):
    rendezvous = Rendezvous.parse(text)
    assert rendezvous == Rendezvous(host=host, port=port, name=name)
    assert not rendezvous.is_on_one_host


@pytest.mark.parametrize(
    "text",
    [
        *("", "/run/x", "file://run/x", "file:///run/", "tcp://host", "tcp://:29500", "tcp://host:0"),
        *("tcp://host:port", "tcp://host:70000", "udp://host:1", "tcp://[::1:2"),
    ],
)
def test_anything_else_is_refused_in_its_own_words(text):
    with pytest.raises(StartError) as caught:
        Rendezvous.parse(text)
    assert repr(text) in caught.value.message


def test_what_torchrun_says_is_a_place():
    assert Place.of_torchrun(TORCHRUN) == Place(1, 4, Rendezvous(host="10.0.0.1", port=29500, name="0"))
    more = {"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    kept = Rendezvous(host="10.0.0.1", port=29500, name="2", is_kept_by_agent=True)
    assert Place.of_torchrun(TORCHRUN | more) == Place(1, 4, kept)


def test_without_a_rank_nobody_has_started_us():
    assert Place.of_torchrun({name: value for name, value in TORCHRUN.items() if name != "RANK"}) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is not"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT is 99999"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": "4"}, "RANK is 4, and WORLD_SIZE 4"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(change, text):
    with pytest.raises(StartError) as caught:
        Place.of_torchrun(TORCHRUN | change)
    assert text in caught.value.message


def test_only_the_address_that_was_named_is_listened_on():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = Rendezvous.parse(f"tcp://127.0.0.1:{port}/x").open_store(rank=0, world=1, seconds=5)
    store.set("a", "b")
    assert store.get("a") == b"b"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5).close()


def test_a_port_that_is_taken_is_an_error_of_the_system():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        Rendezvous.parse(f"tcp://127.0.0.1:{taken.getsockname()[1]}").open_store(rank=0, world=1, seconds=5)
