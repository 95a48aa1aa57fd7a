"""A house of real processes over a tiny checkpoint, and what it said."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from actors.handles import ActorState, House, HouseEvent, HouseFailed, HouseSpec, open_actors
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineSpec


def house_spec(checkpoint: Path, num_engines: int = 1, wants_standby: bool = False, **changes: object) -> HouseSpec:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 40, "device": "cpu", "dtype": "float32", "threads": 1}
    engine = EngineSpec(EngineIndex(0), Epoch(0), "", {}, str(checkpoint), **(sizes | changes))
    return HouseSpec(engine, num_engines, wants_standby)


class Watched:
    """A running house and what it said."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.events: list[HouseEvent] = []
        house.listen(self.events.append)

    def state(self, name: str) -> ActorState:
        return next(state for state in self.house.states() if state.name == name)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert not self.failures, self.failures
            await trio.sleep(0.01)

    async def until_ready(self, *names: str) -> None:
        await self.until(lambda: all(self.state(name).ready for name in names))

    async def until_successor(self, name: str, pid: int | None) -> None:
        await self.until(lambda: self.state(name).ready and self.state(name).pid != pid)

    async def kill(self, name: str) -> None:
        """kill -9, and wait for its successor to be ready."""
        pid = self.state(name).pid
        os.kill(pid, signal.SIGKILL)
        await self.until_successor(name, pid)

    @property
    def failures(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, HouseFailed)]


@asynccontextmanager
async def open_house(spec: HouseSpec) -> AsyncIterator[Watched]:
    async with open_actors(spec) as house:
        yield Watched(house)
