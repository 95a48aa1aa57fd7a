"""What an engine's KV connectors have counted, one after the other, as a reading that never goes down. Used by
app/engine_totals.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, final

import msgspec

from protocol.kv import KvCounts

_GAUGES = ("frames", "disk_blocks", "disk_bytes", "leases")
_EPOCHS = ("epoch", "kv_epoch")


@final
class KvTotals:
    """Of one engine's connectors."""

    def __init__(self) -> None:
        self._past: KvCounts | None = None
        """Counters of the ones before this one."""
        self._latest: KvCounts | None = None

    def take(self, counts: KvCounts) -> None:
        if self._latest is not None and self._latest.kv_epoch != counts.kv_epoch:
            self._past = self.reading()
        self._latest = counts

    def reading(self) -> KvCounts | None:
        """None before there is any."""
        if self._latest is None or self._past is None:
            return self._latest
        return _sum(self._past, self._latest)


def _sum(past: KvCounts, now: KvCounts) -> KvCounts:
    earlier, later = msgspec.structs.asdict(past), msgspec.structs.asdict(now)
    added: dict[str, Any] = {}
    for name, value in later.items():
        if name in _GAUGES or name in _EPOCHS:
            added[name] = value
        elif isinstance(value, dict):
            total = Counter(earlier[name])
            total.update(value)
            added[name] = dict(total)
        else:
            added[name] = earlier[name] + value
    return KvCounts(**added)
