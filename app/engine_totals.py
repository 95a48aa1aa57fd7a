"""What engines count, each and together, as readings that never go down: an engine that is started again counts from
nothing, and its predecessor's counters are kept here. Used by app/engines.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from itertools import zip_longest
from typing import Any, final

import msgspec

from app.kv_totals import KvTotals
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex, Epoch

GAUGES = ("num_requests_running", "num_requests_waiting", "kv_blocks_used", "kv_blocks_total")
IN_HEARTBEATS = ("step_tokens", "steps_by_tokens", "spec_decode_accepted_by_position")


@final
class EngineTotals:
    """Takes each engine's statistics as they come, at the cost of two assignments."""

    def __init__(self) -> None:
        self._epochs: dict[EngineIndex, Epoch] = {}
        self._latest: dict[EngineIndex, EngineStats] = {}
        self._whole: dict[EngineIndex, EngineStats] = {}
        """The latest ones that came with a heartbeat."""
        self._past: dict[EngineIndex, EngineStats] = {}
        """Counters of the incarnations before these."""
        self._kv: defaultdict[EngineIndex, KvTotals] = defaultdict(KvTotals)
        """Their connectors live on when they do not."""

    def was_attached(self, index: EngineIndex, epoch: Epoch) -> bool:
        """Whether this is the incarnation that was attached last."""
        return self._epochs.get(index) == epoch

    def attach(self, index: EngineIndex, epoch: Epoch, num_blocks: int) -> None:
        """An engine is there, or the same one is heard again: it has nothing to do yet."""
        if not self.was_attached(index, epoch):
            self._past[index] = self._since_start(index, without_gauges(self._of(index)))
            self._epochs[index] = epoch
            self._latest[index] = EngineStats(kv_blocks_total=num_blocks)
            self._whole.pop(index, None)
            self._kv[index].take(None)
        else:
            nothing = dict.fromkeys(GAUGES, 0) | {"kv_blocks_total": num_blocks}
            self._latest[index] = msgspec.structs.replace(self._latest[index], **nothing)

    def take(self, index: EngineIndex, stats: EngineStats) -> None:
        """What the engine of the epoch that was attached last says now."""
        self._latest[index] = stats
        if stats.steps_by_tokens:
            self._whole[index] = stats
            self._kv[index].take(stats.kv)

    def latest(self, attached: Container[EngineIndex]) -> dict[EngineIndex, EngineStats]:
        """What each of these said last: its gauges are all there is, its counters begin with its epoch."""
        return {index: stats for index, stats in self._latest.items() if index in attached}

    def readings(self, attached: Container[EngineIndex]) -> dict[EngineIndex, EngineStats]:
        """Of each engine that was ever attached; one that is not now has no gauges."""
        readings = {}
        for index in sorted(self._latest):
            now = self._of(index)
            reading = self._since_start(index, now if index in attached else without_gauges(now))
            kv = self._kv[index].reading(is_attached=index in attached)
            readings[index] = msgspec.structs.replace(reading, kv=kv)
        return readings

    def reading(self, attached: Container[EngineIndex]) -> EngineStats:
        """Of all together."""
        return _sum([EngineStats(), *self.readings(attached).values()])

    def _since_start(self, index: EngineIndex, now: EngineStats) -> EngineStats:
        return _sum([self._past.get(index, EngineStats()), now])

    def _of(self, index: EngineIndex) -> EngineStats:
        latest = self._latest.get(index, EngineStats())
        whole = self._whole.get(index)
        if whole is None:
            return latest
        fields = msgspec.structs.asdict(whole)
        return msgspec.structs.replace(latest, **{name: fields[name] for name in IN_HEARTBEATS})


def without_gauges(stats: EngineStats) -> EngineStats:
    return msgspec.structs.replace(stats, **dict.fromkeys(GAUGES, 0))


def _sum(readings: Iterable[EngineStats]) -> EngineStats:
    """Of each field; lists may have different lengths. Not of connectors, which are counted apart."""
    added: list[Any] = []
    columns = zip(*map(msgspec.structs.astuple, readings), strict=True)
    for name, column in zip(EngineStats.__struct_fields__, columns, strict=True):
        if isinstance(column[0], list):
            added.append([sum(values) for values in zip_longest(*column, fillvalue=0)])
        elif name == "kv":
            added.append(None)
        else:
            added.append(sum(column))
    return EngineStats(*added)
