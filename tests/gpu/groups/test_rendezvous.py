"""Where ranks meet is read strictly, and an address is listened on alone."""

from __future__ import annotations

import socket

import pytest

from gpu.groups.rendezvous import Rendezvous
from protocol.errors import StartError


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
