"""What a connector counts since its epoch began, over all its windows. Told to the engine as KvCounts."""

from __future__ import annotations

from collections import Counter
from typing import final

from attrs import define, field

from actors.kv.lending import Fetched


@final
@define(eq=False)
class Counters:
    queried: Counter[str] = field(factory=Counter)
    found: Counter[str] = field(factory=Counter)
    saved: int = 0
    transfers: Counter[str] = field(factory=Counter)
    transfer_bytes: Counter[str] = field(factory=Counter)
    transfer_seconds: dict[str, float] = field(factory=dict)
    failures: Counter[str] = field(factory=Counter)
    leases_granted: int = 0
    leases_expired: int = 0

    def looked(self, where: str, queried: int, found: int = 0) -> None:
        self.queried[where] += queried
        self.found[where] += found

    def fetched(self, fetched: Fetched) -> None:
        self.found["peer"] += fetched.num_blocks
        if fetched.num_blocks:
            name = fetched.transport
            self.transfers[name] += 1
            self.transfer_bytes[name] += fetched.num_bytes
            self.transfer_seconds[name] = self.transfer_seconds.get(name, 0.0) + fetched.seconds
