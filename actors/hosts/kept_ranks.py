"""The ranks that this host keeps for the leading one: starts and stops them as that wants. Used by main."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

import attrs
import trio

from actors.incarnation import open_incarnation
from actors.record import Record
from protocol.hosts import RankOrder, RankReport
from protocol.ids import Epoch
from protocol.spec import RankSpec

logger = logging.getLogger("trillm.hosts")

Key = tuple[Epoch, int]


@attrs.define(eq=False)
class _Kept:
    """One rank of one incarnation of its engine."""

    spec: RankSpec
    record: Record
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    gone: trio.Event = attrs.field(factory=trio.Event)
    """The process, and what it held, is no more."""
    end: str | None = None
    num_stacks: int = 0

    def report(self) -> RankReport:
        record = self.record
        return RankReport(
            epoch=self.spec.epoch,
            rank=self.spec.rank,
            pid=record.process.pid if record.process is not None else 0,
            heartbeat=record.heartbeat if record.process is not None else None,
            heartbeat_age=trio.current_time() - record.heard_at,
            is_ready=record.ready,
            fault=record.fault,
            lost_rank=record.lost_rank,
            end=self.end,
            ended_from_outside=record.ended_from_outside,
        )


@final
class KeptRanks:
    """All of them, in a nursery that ends with this host's service."""

    def __init__(
        self, nursery: trio.Nursery, local: Callable[[RankSpec], RankSpec], changed: Callable[[], None]
    ) -> None:
        """`local`: the spec with this host's own paths. `changed` is called when there is something to tell."""
        self._nursery = nursery
        self._local = local
        self._changed = changed
        self._kept: dict[Key, _Kept] = {}
        self._living: set[_Kept] = set()
        """Also those that are not wanted any more."""

    def reports(self) -> list[RankReport]:
        return [kept.report() for kept in self._kept.values()]

    def keep(self, orders: Sequence[RankOrder]) -> None:
        """These and no others."""
        wanted = {(order.spec.epoch, order.spec.rank): order for order in orders}
        unwanted = self._kept.keys() - wanted.keys()
        for key in unwanted:
            self._kept.pop(key).scope.cancel()
        for key, order in wanted.items():
            if key not in self._kept:
                self._kept[key] = self._begin(self._local(order.spec))
            self._ask(self._kept[key], order.num_stacks)
        if unwanted:
            self._changed()

    def _begin(self, spec: RankSpec) -> _Kept:
        """Its memory may be that of those before, whose ends are waited for."""
        index = spec.engine.engine_index
        kept = _Kept(spec, Record(f"rank-{index}.{spec.rank}"))
        before = [
            other.gone
            for other in self._living
            if other.spec.engine.engine_index == index and other.spec.epoch != spec.epoch
        ]
        self._living.add(kept)
        self._nursery.start_soon(self._live, kept, before)
        return kept

    async def _live(self, kept: _Kept, before: Sequence[trio.Event]) -> None:
        record = kept.record
        try:
            with kept.scope:
                for gone in before:
                    await gone.wait()
                try:
                    async with open_incarnation(record, kept.spec) as heard:
                        async for _ in heard:
                            self._changed()
                except* OSError as group:
                    record.fault = f"it cannot be started: {group.exceptions[0]}"
                kept.end = record.last_end or "not started"
                logger.error("%s ended: %s", record.name, record.fault or kept.end)
        finally:
            kept.gone.set()
            self._living.remove(kept)
            self._changed()

    def _ask(self, kept: _Kept, num_stacks: int) -> None:
        if num_stacks > kept.num_stacks and kept.record.process is not None:
            kept.num_stacks = num_stacks
            kept.record.process.ask_for_stacks()
