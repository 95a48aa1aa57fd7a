"""A window's NIXL, over the lives of its processes: what is asked of them, and what is waited for. Used by
actors/kv/transports/nixl.

A read that nobody waits for any more ends its process, and with it all that NIXL still does, if it has not come to its
end after a while.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import final

import trio

from actors.kv.lending import FetchError
from actors.kv.transports.nixl_life import Asked, NixlLife
from actors.kv.transports.nixl_messages import Agent, Attend, Failed
from actors.kv.transports.transport import NotStartedError
from actors.kv.window import Window
from protocol.errors import StartError

SETTLE_SECONDS = 5.0
"""Which a read that nobody waits for any more has to come to its end."""
FIRST_REST, LONGEST_REST = 1.0, 60.0
"""Seconds before another try to start a process."""

logger = logging.getLogger("trillm.kv")


@final
class NixlAgent:
    """One window's NIXL, over the lives of its processes. Made by `open_nixl`."""

    def __init__(self, window: Window, environment: Mapping[str, str], first: NixlLife) -> None:
        self._window = window
        self._environment = environment
        self._life = first
        self._num_readers = 0
        self._left: set[Asked] = set()
        """Reads that are under way and that nobody waits for any more."""

    @property
    def agent(self) -> Agent | None:
        """What others need to read from here; None while there is no process."""
        return None if self._life.is_killed else self._life.agent

    @property
    def pid(self) -> int:
        """Of its process, which may have ended."""
        return self._life.pid

    @contextlib.contextmanager
    def being_read(self) -> Iterator[None]:
        """While somebody reads from here: not every device does that without our process."""
        self._num_readers += 1
        if self._num_readers == 1:
            self._life.say(Attend(True))
        try:
            yield
        finally:
            self._num_readers -= 1
            if not self._num_readers:
                self._life.say(Attend(False))

    async def read(self, owner: Agent, sources: Sequence[int], frames: Sequence[int]) -> None:
        """When it returns, all frames are written; when it is cancelled, they may be until `settle` returns. Raises
        FetchError; NotStartedError if nothing has been or will be written."""
        if self._life.is_killed:
            raise NotStartedError("NIXL is being started again")
        asked = self._life.ask(owner, sources, frames)
        try:
            await asked.is_over.wait()
        finally:
            if not asked.is_over.is_set():
                self._left.add(asked)
        match asked.answer:
            case Failed(reason=reason, was_begun=was_begun):
                message = f"NIXL cannot read from the other connector: {reason}"
                raise FetchError("broken", message) if was_begun else NotStartedError(message)
            case None:
                raise FetchError("broken", "NIXL's process has ended while it read from the other connector")

    async def settle(self) -> None:
        """Until no read that has been left writes any more."""
        await trio.lowlevel.checkpoint()
        life, left = self._life, list(self._left)
        with trio.move_on_after(SETTLE_SECONDS):
            for asked in left:
                await asked.is_over.wait()
        if not all(asked.is_over.is_set() for asked in left):
            logger.warning("a read by NIXL that nobody waits for any more does not end: its process is ended instead")
            life.kill()
            await life.is_over.wait()
        self._left.difference_update(left)

    async def run(self) -> None:
        """Until cancelled: then there is no process any more."""
        rest = FIRST_REST
        while True:
            began = trio.current_time()
            await self._life.run()
            if trio.current_time() - began > LONGEST_REST:
                rest = FIRST_REST
            next_life = None
            while next_life is None:
                await trio.sleep(rest)
                rest = min(2 * rest, LONGEST_REST)
                try:
                    next_life = await NixlLife.begin(self._window, self._environment)
                except StartError as error:
                    logger.error("NIXL cannot be started again, next try in %g s: %s", rest, error)
            self._life = next_life
            if self._num_readers:
                next_life.say(Attend(True))


@contextlib.asynccontextmanager
async def open_nixl(window: Window, environment: Mapping[str, str]) -> AsyncIterator[NixlAgent]:
    """With a process for this window until it is left, started with these variables besides ours. Raises StartError."""
    agent = NixlAgent(window, environment, await NixlLife.begin(window, environment))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        yield agent
        nursery.cancel_scope.cancel()
