"""One process in which NIXL runs, from the connector's side: started, asked and ended. Used by
actors/kv/transports/nixl_agent.py, which has one after the other.

Nothing stops a read that NIXL has begun: neither its release nor the memory's does. The end of the process does, since
the kernel has taken its memory, and its devices' access to it, away by then. So a read that failed half-way ends the
process.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import final

import trio
from attrs import define, field

from actors.kv.lending import FetchError
from actors.kv.peer_messages import NOT_READ
from actors.kv.transports.nixl_messages import (
    FROM_PROCESS,
    MAX_MESSAGE_BYTES,
    Agent,
    Done,
    Failed,
    FromProcess,
    NoAgent,
    Read,
    Started,
    ToProcess,
    encode,
)
from actors.kv.window import Window
from actors.kv.wire import Wire
from protocol.errors import StartError

ENTRY = "actors.kv.transports.nixl_process"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's others, which nobody uses there, turn round and round for a while at its start."""
START_SECONDS = 60.0
"""A large window's memory has to be found and, for most devices, pinned."""

logger = logging.getLogger("trillm.kv")


@define(eq=False)
class Asked:
    """A read, until nothing of it is written any more."""

    is_over: trio.Event = field(factory=trio.Event)
    answer: Done | Failed | None = None
    """None: the process has ended."""


@final
class NixlLife:
    """Of one process, from its start until it is reaped."""

    def __init__(self, popen: subprocess.Popen[bytes], wire: Wire) -> None:
        self.agent = Agent(b"", 0)
        self.is_over = trio.Event()
        self.is_killed = False
        self.pid = popen.pid
        self._popen = popen
        self._wire = wire
        self._asked: dict[int, Asked] = {}
        self._last_number = 0
        self._to_say, self._said = trio.open_memory_channel[ToProcess](math.inf)

    @classmethod
    async def begin(cls, window: Window, environment: Mapping[str, str]) -> NixlLife:
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
    def _spawn(cls, window: Window, environment: Mapping[str, str]) -> NixlLife:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            with theirs:
                given = (os.getpid(), window.descriptor)
                sizes = (window.num_frames * window.frame_bytes, window.frame_bytes)
                popen = subprocess.Popen(  # in this thread, with which the process would end (actors/process.py)
                    [sys.executable, "-P", "-m", ENTRY, *map(str, given + sizes)],
                    pass_fds=given[1:],
                    stdin=theirs.fileno(),  # a number to be waited for, however many descriptors we have
                    stdout=2,
                    start_new_session=True,
                    env={**ONE_THREAD, **os.environ, **environment},
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

    def ask(self, owner: Agent, sources: Sequence[int], frames: Sequence[int]) -> Asked:
        self._last_number += 1
        asked = self._asked[self._last_number] = Asked()
        self.say(Read(self._last_number, owner, list(sources), list(frames)))
        return asked
