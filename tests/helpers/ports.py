"""Ports for servers that a test starts later, or again: where 0 will not do."""

from __future__ import annotations

import contextlib
import random
import socket

LASTING = range(16_000, 32_000)
"""Below those from which the system takes what it gives to connections and to who asks for any port."""


def lasting_ports(count: int) -> list[int]:
    """Different ones that are free, and that the system gives to nobody else until servers have them."""
    ports: list[int] = []
    with contextlib.ExitStack() as taken:
        while len(ports) < count:
            port = random.choice(LASTING)
            with contextlib.suppress(OSError):
                taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
    return ports
