"""HTTP/1.1 and nothing else: hypercorn would also speak HTTP/2 without TLS, to whoever begins with its preface or asks
for an upgrade, before any key is looked at. There its flow control waits, without a deadline, for readers that never
read, and its limits on headers are others. Used by app/serving.py.

To be dropped when app/bounded_send.py bounds HTTP/2's streams as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import h11
from hypercorn.protocol.h11 import H11Protocol


async def stay(_: H11Protocol, __: h11.Request) -> None:
    """`H11Protocol._check_protocol` that changes to no other protocol. An upgrade that is not taken up is answered in
    HTTP/1.1, and what follows HTTP/2's preface is no request: the connection ends with a 400."""


@contextmanager
def http1_only() -> Iterator[None]:
    """In place of hypercorn's own method, for this process."""
    original = H11Protocol._check_protocol
    H11Protocol._check_protocol = stay
    try:
        yield
    finally:
        H11Protocol._check_protocol = original
