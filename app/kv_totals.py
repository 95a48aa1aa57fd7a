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
        self._is_there = False

    def take(self, counts: KvCounts | None) -> None:
        """What the engine was told last; None: it has no connector now."""
        self._is_there = counts is not None
        if counts is None:
            return
        if self._latest is not None and self._latest.kv_epoch != counts.kv_epoch:
            self._past = self._total()
        self._latest = counts

    def reading(self, *, is_attached: bool = True) -> KvCounts | None:
        """None before there is any. One that is gone, or whose engine is not heard, keeps its counters and loses its
        gauges."""
        total = self._total()
        return total if total is None or (self._is_there and is_attached) else _without_gauges(total)

    def _total(self) -> KvCounts | None:
        if self._latest is None or self._past is None:
            return self._latest
        return _sum(self._past, self._latest)


def _without_gauges(counts: KvCounts) -> KvCounts:
    nothing = msgspec.structs.asdict(KvCounts(counts.epoch, counts.kv_epoch))
    return msgspec.structs.replace(counts, **{name: nothing[name] for name in _GAUGES})


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
