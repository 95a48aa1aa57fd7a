"""Doing one thing after the other in the order in which each was asked for: tasks that are started together run in any
order. Used by actors/engine/operations and
actors/engine/adapter_loader."""

from __future__ import annotations

from types import TracebackType
from typing import final

import trio


@final
class Turn:
    """A place in the queue, had without waiting; entered when those before it have been left."""

    def __init__(self, before: trio.Event) -> None:
        self._before = before
        self.over = trio.Event()

    async def __aenter__(self) -> None:
        await self._before.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.over.set()


@final
class Turns:
    """The queue. Every turn that is taken has to be entered, or nobody after it gets theirs."""

    def __init__(self) -> None:
        self._last = trio.Event()
        self._last.set()

    def take(self) -> Turn:
        turn = Turn(self._last)
        self._last = turn.over
        return turn
