"""How many requests may be live, and who waits until there is room for one more. Used by app/engine_client.py."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import final

import trio

from protocol.errors import BadRequestError, UnavailableError


@final
class Room:
    """Of one engine client: `live` is its journal, which holds `most` together with those that other clients of the
    engines have, and what goes on besides."""

    def __init__(self, live: Sized, most: int, num_of_others: Callable[[], int] = lambda: 0) -> None:
        self._live = live
        self._most = most
        self._num_of_others = num_of_others
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def num_waiting(self) -> int:
        return self._waiting.statistics().tasks_waiting

    def check(self, count: int) -> None:
        """Raises BadRequestError for more than ever fit, UnavailableError for more than fit now."""
        self._check_at_all(count)
        if self._num_live() + count > self._most:
            raise UnavailableError(
                f"Too many requests: {self._num_live()} are running or queued, the limit is {self._most}"
                + (f", and this one asks for {count}" if count > 1 else ""),
                code="queue_full",
            )

    async def wait(self, count: int) -> None:
        """Until there is room, which others may take before: it is to be taken at once. No checkpoint where there is.
        Raises BadRequestError for more than ever fit."""
        self._check_at_all(count)
        while self._num_live() + count > self._most:
            await self._waiting.park()

    def freed(self, count: int) -> None:
        """Places: those who have waited longest look again."""
        self._waiting.unpark(count=count)

    def look_again(self) -> None:
        """Others may have ended theirs. Asked with every output of an engine, so it wakes no more than may find room:
        each counts the live ones anew."""
        if self._waiting:
            self.freed(max(0, self._most - self._num_live()))

    def _num_live(self) -> int:
        return len(self._live) + self._num_of_others()

    def _check_at_all(self, count: int) -> None:
        if count > self._most:
            raise BadRequestError(
                f"n times the number of prompts is {count}; this server takes at most {self._most} at once",
                param="n",
            )
