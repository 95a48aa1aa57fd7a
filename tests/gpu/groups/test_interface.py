"""gloo is to listen where the ranks of other hosts come from, and nowhere else."""

from __future__ import annotations

import socket

import pytest

from gpu.groups.interface import addresses_of, interface_towards
from protocol.net_address import address_towards, netloc, resolve


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_loopback_interface_leads_to_this_host(host):
    if host == "::1" and host not in addresses_of("lo"):
        pytest.skip("this machine has no IPv6")
    assert address_towards(host, 1) == host
    assert interface_towards(host, 1) == "lo"


def test_every_address_that_an_interface_has_is_found_again():
    found = [(name, address) for _, name in socket.if_nameindex() for address in addresses_of(name)]
    assert ("lo", "127.0.0.1") in found
    for name, address in found:
        if not address.startswith("fe80:"):  # which is another one on each interface
            assert interface_towards(address, 1) == name


def test_an_interface_that_is_not_there_has_no_address():
    assert addresses_of("nowhere0") == set()


def test_addresses_are_written_as_in_urls():
    assert netloc("10.0.0.1", 5) == "10.0.0.1:5"
    assert netloc("fd00::1", "*") == "[fd00::1]:*"
    assert resolve("127.0.0.1", 5) == "127.0.0.1"
