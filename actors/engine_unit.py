"""An engine's process and the ranks that follow it: one unit, which lives and dies together. Used by the supervisor.

Which of them was the cause the unit finds out when all have ended; its leading process's record then says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import final

import attrs
import trio

from actors.handles import ActorState
from actors.incarnation import Facts, log_stack, open_incarnation
from actors.process import ChildProcess
from actors.record import Record
from protocol.ids import EngineIndex
from protocol.spec import EngineSpec, RankSpec


@final
class EngineUnit:
    """Over all its incarnations."""

    def __init__(self, index: EngineIndex, world: int) -> None:
        self.lead = Record(f"engine-{index}")
        self.followers = [Record(f"rank-{index}.{rank}") for rank in range(1, world)]
        self.index = index
        self._has_fallen = False

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
        opened: AbstractAsyncContextManager[ChildProcess],
        begun: Callable[[Record], Awaitable[None]],
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Facts]]:
        """All processes; of the engine's the body gets facts and end as from actors.incarnation. `begun` is called with
        each that has started."""
        self._has_fallen = False
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
        self._blame()

    async def _follow(self, record: Record, spec: RankSpec, begun: Callable[[Record], Awaitable[None]]) -> None:
        async with open_incarnation(record, spec) as heard:
            await self._begin(record, begun)
            async for _ in heard:
                pass  # the engine says when all are ready
            await self._fall()

    async def _begin(self, record: Record, begun: Callable[[Record], Awaitable[None]]) -> None:
        await begun(record)
        if self._has_fallen and record.process is not None:
            record.process.kill()  # too late

    async def _fall(self) -> None:
        """One has ended: the others are of no use."""
        self._has_fallen = True
        async with trio.open_nursery() as nursery:
            for record in self.records:
                if record.process is not None:
                    nursery.start_soon(partial(self._fell, record, record.process))

    async def _fell(self, record: Record, process: ChildProcess) -> None:
        complaint = next((one.fault for one in self.records if one.lost_rank == self.records.index(record)), None)
        if complaint is not None and record.lost_rank is None and process.is_alive():
            record.has_hung = True
            record.fault = complaint
            await log_stack(record, process, complaint)
        process.kill()

    def _blame(self) -> None:
        """The lead's record tells of the one that ended first, or hung."""
        lead, cause = self.lead, self._cause()
        if cause is lead:
            return
        lead.fault = None if cause.fault is None else f"{cause.name}: {cause.fault}"
        lead.last_end = f"lost with {cause.name}, {cause.last_end}"
        lead.ended_from_outside = cause.ended_from_outside

    def _cause(self) -> Record:
        """Whom somebody else has ended; else who hung; else who ended of itself, and not for want of another."""
        for record in self.records:
            if record.ended_from_outside:
                return record
        for record in self.records:
            if record.has_hung:
                return record
        for record in self.records:
            if record.lost_rank is None and not record.was_killed:
                return record
        return self.lead
