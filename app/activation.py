"""Listening sockets that a service manager has opened for us (systemd's socket activation, sd_listen_fds).

Used by app/listening.py. The manager keeps them open while the service restarts: who connects meanwhile waits, and is
not refused. They come as descriptors from 3 on, and variables say how many there are and for which process;
app/notify.py takes those out of the environment before any child is started.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from protocol.errors import StartError
from protocol.net_address import is_loopback

VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES")
FIRST = 3
"""The first descriptor after stdin, stdout and stderr."""
MAX_SOCKETS = 64
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def num_given(variables: Mapping[str, str]) -> int:
    """How many descriptors are for this process. Raises StartError for a number that cannot be."""
    told = variables.get("LISTEN_FDS", "")
    if not told or variables.get("LISTEN_PID") != str(os.getpid()):
        return 0
    if not told.isdecimal() or not int(told[:9]) <= MAX_SOCKETS:
        raise StartError(f"LISTEN_FDS must be a number of sockets up to {MAX_SOCKETS}, and is {told[:40]!r}")
    return int(told)


@contextmanager
def open_given_sockets(
    variables: Mapping[str, str], *, has_key: bool, first: int = FIRST
) -> Iterator[list[socket.socket]]:
    """Those that the manager has opened, from descriptor `first` on, closed here afterwards; none without a manager
    that did.

    Raises StartError for what no connections can be taken from, and for an address that other machines reach while
    there is no key.
    """
    names = variables.get("LISTEN_FDNAMES", "").split(":")
    with ExitStack() as stack:
        given = []
        for number in range(num_given(variables)):
            name = f" ({_plain(names[number])})" if number < len(names) and names[number] else ""
            listener = _open(first + number, f"descriptor {first + number}{name} of the service manager")
            given.append(stack.enter_context(listener))
        if not has_key:
            for listener in given:
                _check_local(listener)
        yield given


def shown(listener: socket.socket) -> str:
    """For people: 127.0.0.1:8000, [::]:8000, unix:/run/trillm.sock, unix:@abstract."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}" if isinstance(name, str) else f"unix:@{os.fsdecode(name[1:])}"
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _plain(name: str) -> str:
    """In one line, and nothing that moves a terminal."""
    return name if name.isprintable() else repr(name)


def _open(descriptor: int, which: str) -> socket.socket:
    """Raises StartError unless it listens for connections."""
    try:
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError as error:
        raise StartError(f"{which} is not open, although LISTEN_FDS counts it") from error
    if not is_socket:
        raise StartError(f"{which} is no socket: connections come over sockets that listen (ListenStream=)")
    listener = socket.socket(fileno=descriptor)
    if reason := _unfit(listener):
        listener.close()
        raise StartError(f"{which} {reason}")
    listener.set_inheritable(False)
    listener.setblocking(False)
    if listener.family != socket.AF_UNIX:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _unfit(listener: socket.socket) -> str:
    """Why no connections of HTTP can be taken from it."""
    if listener.family not in _FAMILIES:
        return f"is a socket of another family ({listener.family!r}) than IPv4, IPv6 and Unix"
    if listener.type != socket.SOCK_STREAM:
        return "is a socket for datagrams or packets: HTTP comes over streams (ListenStream=)"
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen: the server takes its connections itself (Accept=no)"
    return ""


def _check_local(listener: socket.socket) -> None:
    if listener.family == socket.AF_UNIX:
        return
    if not is_loopback(listener.getsockname()[0]):
        raise StartError(
            f"the service manager listens on {shown(listener)}, which can be reached from other machines, and there is "
            "no --api-key: give one (or VLLM_API_KEY in the environment), or have it listen on 127.0.0.1"
        )
