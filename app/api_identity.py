"""Which of several API servers this is, and in which life. Used by app/engine_client.py to name what it sends.

Engines go by these names: two API servers, or one before and after its death, must never give the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from attrs import frozen

from protocol.ids import FIRST_CLIENT, ClientIndex, RequestId


@frozen
class ApiIdentity:
    """By default the only one there is."""

    client: ClientIndex = FIRST_CLIENT
    incarnation: int = 0
    """Unique among all API servers of a run; 0 for one that lives as long as its engines."""
    num_servers: int = 1

    @property
    def has_peers(self) -> bool:
        return self.num_servers > 1

    def request_ids(self) -> Iterator[RequestId]:
        prefix = f"r{self.incarnation}-" if self.incarnation else "r"
        return (RequestId(f"{prefix}{number}") for number in count(1))

    def call_ids(self) -> Iterator[int]:
        """Non-negative int64s."""
        return count((self.incarnation << 32) + 1)


ALONE = ApiIdentity()
