"""Addresses on a network of hosts: how they are written, and which of ours another host would see.

Used by actors/hosts, which binds there, by gpu/groups, which has gloo listen there, and by app/auth and app/api_client,
which ask whether an address is this machine's.
"""

from __future__ import annotations

import ipaddress
import socket


def netloc(host: str, port: int | str) -> str:
    """HOST:PORT, as it stands in URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_name(host: str) -> bool:
    """Whether it may be the name or the address of a host: what is not, Python's resolver answers with no OSError."""
    try:
        return bool(host.encode("idna")) and "\0" not in host
    except UnicodeError:  # a label that is empty or too long
        return False


def is_loopback(address: str) -> bool:
    """Whether it is an address that only this machine reaches, of IPv4 also as IPv6 writes it. A name is none."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def is_local(host: str) -> bool:
    """Whether it is always this machine: a loopback address, or localhost with all below it (RFC 6761). In small
    letters."""
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


def resolve(host: str, port: int) -> str:
    """The first address of this name, now. Raises OSError."""
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])


def address_towards(host: str, port: int) -> str:
    """Ours, as that host would see it. Raises OSError where there is no way to it."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect(address)  # which sends nothing
        own: str = asked.getsockname()[0]
    return own.partition("%")[0]
