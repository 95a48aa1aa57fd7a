"""Where other connectors are, and where they find us: addresses, connections and listeners. Used by actors/kv/peers."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import trio
from attrs import frozen

from actors.kv.lending import FetchError
from actors.kv.wire import Wire
from actors.runtime_directory import MAX_SOCKET_PATH
from protocol.errors import StartError
from protocol.kv_ticket import KvTicket
from protocol.net_address import is_name, netloc

BACKLOG = 64


@frozen
class PeerAddress:
    """Of a Unix socket, or of a host and its port."""

    path: str | None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return self.path or netloc(self.host, self.port)


def boot_id() -> str:
    """Of this machine, since it was started; in all its containers. Empty where there is none to be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def addresses(ticket: KvTicket, may_be_local: bool) -> list[PeerAddress]:
    """The best first. A path counts on the machine that it was told of, where another container may not have it."""
    found = []
    if ticket.path is not None and ticket.boot_id and ticket.boot_id == boot_id():
        found.append(PeerAddress(ticket.path))
    if ticket.host is not None:
        found.append(PeerAddress(None, ticket.host, ticket.port))
    return found if may_be_local else found[::-1]


async def connect(address: PeerAddress) -> Wire:
    """Raises FetchError: "unreachable", or "refused" for a socket of another user. The caller sets the time."""
    try:
        if address.path is not None:
            return await _connect_local(address.path)
        return await _connect_host(address.host, address.port)
    except OSError as error:
        raise FetchError("unreachable", f"no connector can be reached at {address}: {error}") from error


async def _connect_local(path: str) -> Wire:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(connected.close)
        connected.setblocking(False)
        await trio.lowlevel.checkpoint()
        connected.connect(path)  # at once, or EAGAIN where too many wait already
        wire = Wire(connected)
        if wire.peer_uid() != os.getuid():
            raise FetchError("refused", f"{path} is a socket of another user")
        stack.pop_all()
        return wire


async def _connect_host(host: str, port: int) -> Wire:
    problem = OSError(f"{host} has no address")
    if not is_name(host):
        raise problem
    for family, kind, protocol, _, address in await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with contextlib.ExitStack() as stack:
            connecting = stack.enter_context(trio.socket.socket(family, kind, protocol))
            try:
                await connecting.connect(address)
            except OSError as error:
                problem = error
                continue
            return Wire(socket.socket(fileno=connecting.detach()))
    raise problem


@contextlib.contextmanager
def listen_at_path(path: str) -> Iterator[socket.socket]:
    """For processes of our user only. What lies there from before is nobody's any more: a path belongs to one engine.
    Raises StartError."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise StartError(f"{path}: the path of a socket has at most {MAX_SOCKET_PATH} bytes")
    place = Path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            listener.bind(path)
            place.chmod(0o600)
        except OSError as error:
            raise StartError(f"{path}: other connectors cannot be heard there: {error.strerror}") from error
        ours = place.stat().st_ino
        try:
            yield _listening(listener)
        finally:
            with contextlib.suppress(FileNotFoundError):
                if place.stat().st_ino == ours:
                    place.unlink()


@contextlib.contextmanager
def listen_at_host(host: str, port: int) -> Iterator[socket.socket]:
    """At this address only; 0: any free port. Raises StartError."""
    if not is_name(host):
        raise StartError(f"{host!r}: no host has such a name")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        raise StartError(f"{host}: not an address of this host: {error}") from error
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            where = netloc(host, port)
            raise StartError(f"{where}: other connectors cannot be heard there: {error.strerror}") from error
        yield _listening(listener)


def _listening(listener: socket.socket) -> socket.socket:
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
