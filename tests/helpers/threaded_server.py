"""A real server whose own thread looks after it, for tests that are not trio's: a browser's are plain functions."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TypeVar

import attrs
import trio

from tests.helpers.server import Server

_Answer = TypeVar("_Answer")
_PATIENCE = 60.0


@attrs.frozen
class ThreadedServer:
    server: Server
    _token: trio.lowlevel.TrioToken

    @property
    def url(self) -> str:
        return self.server.url

    def call(self, method: Callable[..., Awaitable[_Answer]], *arguments: object) -> _Answer:
        """Run what is the server's own: `served.call(served.server.num_requests)`. It has a minute."""

        async def bounded() -> _Answer:
            with trio.fail_after(_PATIENCE):
                return await method(*arguments)

        return trio.from_thread.run(bounded, trio_token=self._token)

    def num_requests(self) -> float:
        """Running or waiting in the engine."""
        return self.call(self.server.num_requests)

    def until_idle(self) -> None:
        """Until no request is left in the engine."""

        async def idle() -> None:
            while await self.server.num_requests():
                await trio.sleep(0.02)

        self.call(idle)


@contextmanager
def in_thread(opened: AbstractAsyncContextManager[Server]) -> Iterator[ThreadedServer]:
    """`with in_thread(open_server(checkpoint)) as served`: what goes wrong in its thread goes wrong here."""
    ready: queue.SimpleQueue[tuple[ThreadedServer, trio.Event] | BaseException] = queue.SimpleQueue()
    failures: list[BaseException] = []

    async def hold() -> None:
        async with opened as server:
            leave = trio.Event()
            ready.put((ThreadedServer(server, trio.lowlevel.current_trio_token()), leave))
            await leave.wait()

    def run() -> None:
        try:
            trio.run(hold)
        except BaseException as failure:  # a skip, too
            failures.append(failure)
            ready.put(failure)

    thread = threading.Thread(target=run, name="server of a test")
    thread.start()
    told = ready.get(timeout=_PATIENCE)
    if isinstance(told, BaseException):
        thread.join()
        raise told
    served, leave = told
    try:
        yield served
    finally:
        with suppress(trio.RunFinishedError):  # its thread has ended by itself, and says why below
            trio.from_thread.run_sync(leave.set, trio_token=served._token)
        thread.join()
    if failures:
        raise failures[0]
