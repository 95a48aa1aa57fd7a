"""Which of this host's devices UCX may use and listen at, and whether there is any that makes it worth while. Used by
actors/kv/transports/choice.py."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

INFINIBAND = Path("/sys/class/infiniband")
INET6 = Path("/proc/net/if_inet6")
SIOCGIFCONF = 0x8912
IFCONF = struct.Struct("iP")
IFREQ = struct.Struct("16s4x4s16x")
"""Of the kernel's answer: the name of an interface, or a label with it in front, and one of its addresses."""
MAX_ADDRESSES = 4096


def rdma_devices(place: Path = INFINIBAND) -> list[str]:
    """Of this host, whatever they lead to."""
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def ucx_variables(host: str | None, place: Path = INFINIBAND) -> dict[str, str]:
    """So that UCX uses the interface of this address only, and the RDMA ports that belong to it. Nothing where the
    operator has said something, or for an address that is of no interface in particular: then it uses them all. Without
    an address: only for processes of this host."""
    quiet = {} if "NIXL_LOG_LEVEL" in os.environ else {"NIXL_LOG_LEVEL": "WARN"}
    if "UCX_NET_DEVICES" in os.environ:
        return quiet
    interface = interface_of(host or "127.0.0.1")
    if interface is None:
        return quiet
    return quiet | {"UCX_NET_DEVICES": ",".join([interface, *_ports_of(interface, place)])}


def _ports_of(interface: str, place: Path) -> Iterator[str]:
    for device in rdma_devices(place):
        if (place / device / "device" / "net" / interface).exists():
            for port in sorted((place / device / "ports").iterdir()):
                yield f"{device}:{port.name}"


def interface_of(host: str) -> str | None:
    """None if it is nobody's."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        address = ipaddress.ip_address(str(found).partition("%")[0])
    except (OSError, ValueError):
        return None
    if address.is_loopback:
        return "lo"
    return next((name for name, has in _addresses() if has == address), None)


def _addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    found = array.array("B", bytes(MAX_ADDRESSES * IFREQ.size))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, SIOCGIFCONF, IFCONF.pack(len(found), found.buffer_info()[0]))
    for label, packed in IFREQ.iter_unpack(found[: IFCONF.unpack(answer)[0]]):
        yield label.partition(b"\0")[0].decode().partition(":")[0], ipaddress.IPv4Address(packed)
    if INET6.exists():
        for line in INET6.read_text().splitlines():
            digits, *_, name = line.split()
            yield name, ipaddress.IPv6Address(bytes.fromhex(digits))
