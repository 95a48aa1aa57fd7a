"""The parent's side of a standby: a process that has imported what engines need, for the next engine to begin in.

An engine's restart is mostly the import of torch. The standby is made once the engines serve and are idle, so that
neither anybody's start nor the first answers wait for it, and again after each that was taken, then at once, since
deaths come in series. Whatever is wrong with it, an ordinary child takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import final

import attrs
import msgspec
import trio

from actors.handles import ActorState
from actors.process import ChildProcess, open_process
from protocol.ids import Epoch
from protocol.messages import VERSION
from protocol.spec import EngineSpec, Fault, Heartbeat, Ready, StandbySpec, Start

STANDBY = "standby-0"
"""At least as long as an engine's name, which takes its place in the process's arguments."""
ANSWER_SECONDS = 2.0
"""From Start to the first heartbeat of a standby that is to be an engine; after that an ordinary child is faster."""
IMPORT_SECONDS = 600.0
"""It gives way to everybody meanwhile."""
QUIET_SECONDS = 2.0
"""How long the engines have to be idle before the first one is made,"""
PATIENCE_SECONDS = 20.0
"""and how long that is waited for."""
POLL_SECONDS = 0.5
RETRY_SECONDS = 15.0
"""From a standby's death to the next one."""

logger = logging.getLogger("trillm.supervisor")


@attrs.frozen(eq=False)
class Spare:
    """A standby that can be taken, and what ends it: whoever takes that over owns the process."""

    process: ChildProcess
    life: AsyncExitStack
    taken: trio.Event = attrs.field(factory=trio.Event)


@final
class Standby:
    """`run` has to be running; nothing is started before `want`."""

    def __init__(self, new_epoch: Callable[[], Epoch], are_idle: Callable[[], bool]) -> None:
        """`are_idle`: whether the engines have nothing to do."""
        self._new_epoch = new_epoch
        self._are_idle = are_idle
        self._wanted = trio.Event()
        self._epoch = Epoch(0)
        self._process: ChildProcess | None = None
        self._spare: Spare | None = None
        self._phase_since = trio.current_time()
        self._deaths = 0
        self._last_end: str | None = None

    def want(self) -> None:
        """Engines serve: there is time for the next standby, if there is none."""
        self._wanted.set()

    def state(self) -> ActorState:
        return ActorState(
            name=STANDBY,
            epoch=self._epoch,
            pid=self._process.pid if self._process else None,
            ready=self._spare is not None,
            phase="down" if self._process is None else "load" if self._spare is None else "idle",
            phase_seconds=trio.current_time() - self._phase_since,
            heartbeat_age=0.0,
            progress=0.0,
            restarts=self._deaths,
            last_end=self._last_end,
            is_needed=False,
        )

    @asynccontextmanager
    async def open_engine(self, spec: EngineSpec, name: str) -> AsyncIterator[ChildProcess]:
        """As actors.process.open_process, but in the standby if there is one that answers."""
        if spare := self._take():
            async with spare.life:
                if await begins(spare.process, Start(VERSION, spec, name)):
                    spare.process.name = name
                    yield spare.process
                    return
            logger.error("%s did not answer: %s; an ordinary child starts", STANDBY, spare.process.describe_end())
        async with open_process(spec, name) as process:
            yield process

    def _take(self) -> Spare | None:
        """Hand it over, without a checkpoint in between, unless it is of no use any more."""
        spare = self._spare
        if spare is None:
            return None
        if not spare.process.is_running():
            spare.process.kill()  # it may have been stopped
            return None
        self._wanted = trio.Event()
        self._spare = self._process = None
        self._phase_since = trio.current_time()
        spare.taken.set()
        return attrs.evolve(spare, life=spare.life.pop_all())

    async def run(self) -> None:
        """Until cancelled."""
        await self._wanted.wait()
        with trio.move_on_after(PATIENCE_SECONDS):
            await self._quiet()
        while True:
            await self._wanted.wait()
            try:
                taken = await self._one()
            except OSError as error:  # no process or descriptor to be had
                taken, self._last_end = False, f"not started: {error}"
            if not taken:
                self._deaths += 1
                logger.error("%s ended: %s", STANDBY, self._last_end)
                await trio.sleep(RETRY_SECONDS)

    async def _quiet(self) -> None:
        busy_at = trio.current_time()
        while trio.current_time() < busy_at + QUIET_SECONDS:
            await trio.sleep(POLL_SECONDS)
            if not self._are_idle():
                busy_at = trio.current_time()

    async def _one(self) -> bool:
        """From its start until it is taken, which is True, or has ended."""
        async with AsyncExitStack() as life:
            spec = StandbySpec(self._new_epoch())
            process = await life.enter_async_context(open_process(spec, STANDBY))
            self._epoch, self._process, self._phase_since = spec.epoch, process, trio.current_time()
            try:
                if wrong := await why_not_ready(process):
                    logger.error("%s cannot be had: %s", STANDBY, wrong)
                    process.kill()
                else:
                    spare = self._spare = Spare(process, life)
                    self._phase_since = trio.current_time()
                    await until_taken_or_ended(spare)
                    if spare.taken.is_set():
                        return True
            finally:
                if self._process is process:
                    self._spare = self._process = None
                    self._phase_since = trio.current_time()
        self._last_end = process.describe_end()
        return False


async def why_not_ready(process: ChildProcess) -> str | None:
    """Wait until it has imported everything; what went wrong, if it cannot."""
    try:
        with trio.move_on_after(IMPORT_SECONDS):
            match await process.receive():
                case Ready():
                    return None
                case Fault(message=text):
                    return text
                case message:
                    return f"it sent {message} before it was ready"
    except (trio.EndOfChannel, trio.BrokenResourceError):
        return "it ended"
    except msgspec.DecodeError as error:
        return f"it sent a control frame that cannot be decoded: {error}"
    return f"it was not ready within {IMPORT_SECONDS:.0f} s"


async def until_taken_or_ended(spare: Spare) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_at_end, spare.process, nursery.cancel_scope)
        await spare.taken.wait()
        nursery.cancel_scope.cancel()


async def cancel_at_end(process: ChildProcess, scope: trio.CancelScope) -> None:
    await process.wait()
    scope.cancel()


async def begins(process: ChildProcess, start: Start) -> bool:
    """Whether it answers its Start in time. If not it is killed."""
    try:
        with trio.move_on_after(ANSWER_SECONDS):
            await process.send(start)
            if isinstance(await process.receive(), Heartbeat):
                return True
    except (trio.EndOfChannel, trio.BrokenResourceError, msgspec.DecodeError):
        pass  # it has ended, or is not itself
    process.kill()
    return False
