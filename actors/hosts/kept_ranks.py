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
from protocol.spec import Heartbeat, RankSpec

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
    created_at: float = attrs.field(factory=trio.current_time)
    is_waiting: bool = True
    """For the ends of those before."""

    def report(self) -> RankReport:
        record = self.record
        now = trio.current_time()
        heartbeat, heard_at = record.heartbeat if record.process is not None else None, record.heard_at
        if self.is_waiting:  # it is well, and not to be blamed for the others
            heartbeat, heard_at = Heartbeat(0, "start", now - self.created_at), now
        return RankReport(
            epoch=self.spec.epoch,
            rank=self.spec.rank,
            pid=record.process.pid if record.process is not None else 0,
            heartbeat=heartbeat,
            heartbeat_age=now - heard_at,
            is_ready=record.ready,
            fault=None if record.has_hung else record.fault,  # it has said none itself: the next one may do better
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
            if other.spec.engine.engine_index == index
            and (other.spec.epoch != spec.epoch or other.spec.rank == spec.rank)
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
                kept.is_waiting = False
                kept.end = await self._one_life(kept)
                logger.error("%s ended: %s", record.name, record.fault or kept.end)
        finally:
            kept.gone.set()
            self._living.remove(kept)
            self._changed()

    async def _one_life(self, kept: _Kept) -> str:
        """How it has ended."""
        record = kept.record
        try:
            async with open_incarnation(record, kept.spec) as heard:
                async for _ in heard:
                    self._changed()
        except* OSError as group:  # no process or descriptor to be had, which passes
            record.last_end = f"not started: {group.exceptions[0]}"
        assert record.last_end is not None
        return f"{record.last_end}, since {record.fault}" if record.has_hung else record.last_end

    def _ask(self, kept: _Kept, num_stacks: int) -> None:
        if num_stacks > kept.num_stacks and kept.record.process is not None:
            kept.num_stacks = num_stacks
            kept.record.process.ask_for_stacks()
