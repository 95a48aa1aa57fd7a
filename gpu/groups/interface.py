"""Which of this host's network interfaces leads to where the ranks meet: on that one gloo is to listen. Used by open.

Python's library does not list the addresses of interfaces, and Linux tells them in two ways.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from protocol.net_address import address_towards

SIOCGIFADDR = 0x8915
REQUEST = "16s240x"
"""A struct ifreq: the name, and room for the address."""
ADDRESS = slice(20, 24)


def interface_towards(host: str, port: int) -> str | None:
    """None if no interface of ours has the address that we would speak from. Raises OSError where there is no way to
    that host."""
    own = address_towards(host, port)
    for _, name in socket.if_nameindex():
        if own in addresses_of(name):
            return name
    return None


def addresses_of(interface: str) -> set[str]:
    """Its first one of IPv4, and all of IPv6."""
    found = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):  # it has none
        answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack(REQUEST, interface.encode()[:15]))
        found.add(socket.inet_ntoa(answer[ADDRESS]))
    listed = Path("/proc/net/if_inet6")
    for line in listed.read_text().splitlines() if listed.exists() else ():
        address, *_, name = line.split()
        if name == interface:
            found.add(str(ipaddress.IPv6Address(int(address, 16))))
    return found
