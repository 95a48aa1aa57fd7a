"""Which of this host's devices UCX may use and listen at, and whether there is any that makes it worth while. Used by
actors/kv/transports/choice.py."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

INFINIBAND = Path("/sys/class/infiniband")
INET6 = Path("/proc/net/if_inet6")
SIOCGIFADDR = 0x8915
IFREQ = struct.Struct("16s16x8x")


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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(asking, SIOCGIFADDR, IFREQ.pack(name.encode()))
                yield name, ipaddress.IPv4Address(answer[20:24])
    if INET6.exists():
        for line in INET6.read_text().splitlines():
            digits, *_, name = line.split()
            yield name, ipaddress.IPv6Address(bytes.fromhex(digits))
