"""Which orders a host takes for new, whatever the network does with them."""

from __future__ import annotations

from actors.hosts.main import Life
from protocol.hosts import HostOrder


def order(leader: str, number: int) -> HostOrder:
    return HostOrder(leader, "life", [], number=number)


def test_an_order_counts_once_and_never_after_a_newer_one():
    life = Life()
    assert not life.is_late(order("a", 1))
    life.hear(order("a", 1))
    assert life.is_late(order("a", 1))
    assert not life.is_late(order("a", 3))
    life.hear(order("a", 3))
    assert life.is_late(order("a", 2))


def test_another_leading_host_counts_anew_and_the_one_before_it_is_over():
    life = Life()
    life.hear(order("a", 7))
    assert not life.is_late(order("b", 1))
    life.hear(order("b", 1))
    assert life.is_late(order("a", 8))
    assert not life.is_late(order("b", 2))
