"""A connector's side of the process in which NIXL runs (actors/kv/transports/nixl_process.py): starts it, asks it, and
starts another when it has ended.

Nothing stops a read that NIXL has begun: neither its release nor the memory's does. The end of the process does, since
the kernel has taken its memory, and its devices' access to it, away by then. So a read that failed half-way ends the
process, and one that nobody waits for any more does so if it has not come to its end after a while.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import final

import trio
from attrs import define, field

from actors.kv.lending import FetchError
from actors.kv.peer_messages import NOT_READ
from actors.kv.transports.nixl_messages import (
    FROM_PROCESS,
    MAX_MESSAGE_BYTES,
    Agent,
    Attend,
    Done,
    Failed,
    FromProcess,
    NoAgent,
    Read,
    Started,
    ToProcess,
    encode,
)
from actors.kv.transports.transport import NotStartedError
from actors.kv.window import Window
from actors.kv.wire import Wire
from protocol.errors import StartError

ENTRY = "actors.kv.transports.nixl_process"
START_SECONDS = 60.0
"""A large window's memory has to be found and, for most devices, pinned."""
SETTLE_SECONDS = 5.0
"""Which a read that nobody waits for any more has to come to its end."""
FIRST_REST, LONGEST_REST = 1.0, 60.0
"""Seconds before another try to start the process."""

logger = logging.getLogger("trillm.kv")


@define(eq=False)
class _Asked:
    """A read, until nothing of it is written any more."""

    is_over: trio.Event = field(factory=trio.Event)
    answer: Done | Failed | None = None
    """None: the process has ended."""


@final
class _Life:
    """Of one process, from its start until it is reaped."""

    def __init__(self, popen: subprocess.Popen[bytes], wire: Wire) -> None:
        self.agent = Agent(b"", 0)
        self.is_over = trio.Event()
        self.is_killed = False
        self.pid = popen.pid
        self._popen = popen
        self._wire = wire
        self._asked: dict[int, _Asked] = {}
        self._last_number = 0
        self._to_say, self._said = trio.open_memory_channel[ToProcess](math.inf)

    @classmethod
    async def begin(cls, window: Window, environment: Mapping[str, str]) -> _Life:
        """One that can be read from. Whoever has it owes it `end`. Raises StartError."""
        try:
            life = cls._spawn(window, environment)
        except OSError as error:
            raise StartError(f"a process for NIXL cannot be had: {error}") from error
        try:
            await life._start()
        except BaseException:
            await life.end()
            raise
        return life

    @classmethod
    def _spawn(cls, window: Window, environment: Mapping[str, str]) -> _Life:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            with theirs:
                given = (os.getpid(), theirs.fileno(), window.descriptor)
                sizes = (window.num_frames * window.frame_bytes, window.frame_bytes)
                popen = subprocess.Popen(  # in this thread, with which the process would end (actors/process.py)
                    [sys.executable, "-m", ENTRY, *map(str, given + sizes)],
                    pass_fds=given[1:],
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    start_new_session=True,
                    env={**os.environ, **environment},
                )
            stack.pop_all()
        return cls(popen, Wire(ours))

    async def _start(self) -> None:
        try:
            with trio.fail_after(START_SECONDS):
                message = await self._hear()
        except trio.TooSlowError:
            raise StartError(f"NIXL has not started within {START_SECONDS:g} s") from None
        except FetchError as error:
            raise StartError(f"NIXL's process has ended at its start: {error}") from error
        if isinstance(message, NoAgent):
            raise StartError(message.reason)
        if not isinstance(message, Started):
            raise StartError(f"NIXL's process begins with {type(message).__name__}")
        self.agent = message.agent

    async def run(self) -> None:
        """Until the process has ended, or cancelled, which ends it."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._say_all)
                with contextlib.suppress(FetchError):
                    while True:
                        self._take(await self._hear())
                nursery.cancel_scope.cancel()
        finally:
            await self.end()
        logger.warning("NIXL's process has ended (status %d)", self._popen.returncode)

    async def end(self) -> None:
        """When it returns, the process is no more. Idempotent."""
        self.kill()
        self._wire.close()
        with trio.CancelScope(shield=True):
            await self._has_ended()
        self._popen.wait()  # at once by now
        self.is_over.set()
        for asked in self._asked.values():
            asked.is_over.set()
        self._asked.clear()

    async def _has_ended(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._popen.poll() is None:
            try:
                ended = os.pidfd_open(self._popen.pid)
            except OSError:  # no descriptors left
                return
            try:
                await trio.lowlevel.wait_readable(ended)
            finally:
                os.close(ended)

    def kill(self) -> None:
        self.is_killed = True
        if self._popen.poll() is None:
            self._popen.kill()

    async def _hear(self) -> FromProcess:
        try:
            return FROM_PROCESS.decode(await self._wire.receive(MAX_MESSAGE_BYTES))
        except NOT_READ as error:
            raise FetchError("broken", f"NIXL's process says what is no message: {error}") from error

    def _take(self, message: FromProcess) -> None:
        if not isinstance(message, Done | Failed) or message.number not in self._asked:
            return
        self._asked[message.number].answer = message
        if isinstance(message, Failed) and message.was_begun:
            self.kill()  # and it is over when that is
        else:
            self._asked.pop(message.number).is_over.set()

    async def _say_all(self) -> None:
        with contextlib.suppress(FetchError):  # `run` hears of it
            async for message in self._said:
                await self._wire.send(encode(message))

    def say(self, message: ToProcess) -> None:
        self._to_say.send_nowait(message)

    def ask(self, owner: Agent, sources: Sequence[int], frames: Sequence[int]) -> _Asked:
        self._last_number += 1
        asked = self._asked[self._last_number] = _Asked()
        self.say(Read(self._last_number, owner, list(sources), list(frames)))
        return asked


@final
class NixlAgent:
    """One window's NIXL, over the lives of its processes. Made by `open_nixl`."""

    def __init__(self, window: Window, environment: Mapping[str, str], first: _Life) -> None:
        self._window = window
        self._environment = environment
        self._life = first
        self._num_readers = 0
        self._left: set[_Asked] = set()
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
                    next_life = await _Life.begin(self._window, self._environment)
                except StartError as error:
                    logger.error("NIXL cannot be started again, next try in %g s: %s", rest, error)
            self._life = next_life
            if self._num_readers:
                next_life.say(Attend(True))


@contextlib.asynccontextmanager
async def open_nixl(window: Window, environment: Mapping[str, str]) -> AsyncIterator[NixlAgent]:
    """With a process for this window until it is left, started with these variables besides ours. Raises StartError."""
    agent = NixlAgent(window, environment, await _Life.begin(window, environment))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.run)
        yield agent
        nursery.cancel_scope.cancel()
