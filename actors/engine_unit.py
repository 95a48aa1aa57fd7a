"""An engine's process and the ranks that follow it: one unit, which lives and dies together. Used by the supervisor.

Which of them was the cause the unit finds out when all have ended; its leading process's record then says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import final

import attrs
import trio

from actors.handles import ActorState
from actors.incarnation import Facts, log_stack, open_incarnation
from actors.record import Record
from actors.running import Running
from protocol.ids import EngineIndex
from protocol.spec import EngineSpec, RankSpec

GRACE_SECONDS = 1.0
"""For ranks that have waited in vain at the same time, to say for whom: who waits for one that waits is no witness."""


OpenRank = Callable[[RankSpec, str], AbstractAsyncContextManager[Running] | None]
"""Where the rank of this name is kept, if that is not here."""


def here(spec: RankSpec, name: str) -> None:
    """All ranks are on this host."""


@final
class EngineUnit:
    """Over all its incarnations."""

    def __init__(self, index: EngineIndex, world: int, elsewhere: OpenRank = here) -> None:
        self.lead = Record(f"engine-{index}")
        self.followers = [Record(f"rank-{index}.{rank}") for rank in range(1, world)]
        self.index = index
        self._elsewhere = elsewhere
        self._has_fallen = False
        self._felled = trio.Event()

    @property
    def records(self) -> list[Record]:
        """By rank."""
        return [self.lead, *self.followers]

    def states(self) -> list[ActorState]:
        """The engine is heard of when all of them are. Nobody needs a follower but the engine."""
        lead, *followers = (record.state() for record in self.records)
        if lead.pid is not None:
            silent = max(state.heartbeat_age for state in (lead, *followers))
            lead = attrs.evolve(lead, heartbeat_age=silent)
        followers = [attrs.evolve(state, is_needed=False) for state in followers]
        return [attrs.evolve(lead, engine_index=self.index), *followers]

    @asynccontextmanager
    async def open_incarnation(
        self,
        spec: EngineSpec,
        opened: AbstractAsyncContextManager[Running],
        begun: Callable[[Record], Awaitable[None]],
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Facts]]:
        """All processes; of the engine's the body gets facts and end as from actors.incarnation. `begun` is called with
        each that has started."""
        self._has_fallen, self._felled = False, trio.Event()
        for record in self.followers:
            record.restarts += 1
            record.fault = None
        async with trio.open_nursery() as nursery:
            for rank, record in enumerate(self.followers, 1):
                nursery.start_soon(self._follow, record, RankSpec(spec.epoch, spec, rank), begun)
            async with open_incarnation(self.lead, spec, opened) as heard:
                await self._begin(self.lead, begun)
                yield heard
                await self._fall()
            nursery.cancel_scope.cancel()
        self.blame()

    async def _follow(self, record: Record, spec: RankSpec, begun: Callable[[Record], Awaitable[None]]) -> None:
        async with open_incarnation(record, spec, self._elsewhere(spec, record.name)) as heard:
            await self._begin(record, begun)
            async for _ in heard:
                pass  # the engine says when all are ready
            await self._fall()

    async def _begin(self, record: Record, begun: Callable[[Record], Awaitable[None]]) -> None:
        await begun(record)
        if self._has_fallen and record.process is not None:
            record.process.kill()  # too late

    async def _fall(self) -> None:
        """One has ended: the others are of no use. Returns when all are dying."""
        if self._has_fallen:
            return await self._felled.wait()
        self._has_fallen = True
        if any(late is not None and is_alive(late) for late in map(self._waits_for, self.records)):
            await trio.sleep(GRACE_SECONDS)
        async with trio.open_nursery() as nursery:
            for record in self.records:
                if record.process is not None:
                    nursery.start_soon(self._fell, record, record.process)
        self._felled.set()

    async def _fell(self, record: Record, process: Running) -> None:
        waiting = [one for one in self.records if self._waits_for(one) is record]
        is_silent = record.lost_rank is None and process.is_alive() and not process.is_cut_off()
        if waiting and is_silent:
            record.fault, record.has_hung = waiting[0].fault, True
            await log_stack(record, process, f"{waiting[0].name} says that {waiting[0].fault}")
        process.kill()

    def _waits_for(self, record: Record) -> Record | None:
        """In vain, as it says."""
        return None if record.lost_rank is None else self.records[record.lost_rank]

    def blame(self) -> None:
        """When all have ended: the lead's record tells of the one that ended first, or hung."""
        lead, cause = self.lead, cause_of(self.records)
        if cause is lead:
            return
        lead.fault = None if cause.fault is None else f"{cause.name}: {cause.fault}"
        lead.last_end = f"lost with {cause.name}, {cause.last_end}"
        lead.ended_from_outside, lead.has_hung = cause.ended_from_outside, cause.has_hung


def is_alive(record: Record) -> bool:
    return record.process is not None and record.process.is_alive()


def cause_of(records: Sequence[Record]) -> Record:
    """Of an engine's ranks, all of which have ended: whom somebody else has ended; else who hung; else who ended of
    itself, and not for want of another; else the first."""
    for record in records:
        if record.ended_from_outside:
            return record
    for record in records:
        if record.has_hung:
            return record
    for record in records:
        if record.lost_rank is None and not record.was_killed:
            return record
    return records[0]
