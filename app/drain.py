"""The moment from which no more requests are taken: whoever is still sending one is told at once.

Without it a client that has sent half a body would hold the shutdown up, for a request that would be refused anyway.
Begun by app/serving.py and app/proxy/serving.py; app/body.py waits under it, as does all that the proxy waits for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, final

import trio

from protocol.errors import UnavailableError

T = TypeVar("T")


@final
class Drain:
    """Of one server."""

    def __init__(self) -> None:
        self._begun = False
        self._waiting: set[trio.CancelScope] = set()

    def begin(self) -> None:
        self._begun = True
        for scope in self._waiting:
            scope.cancel()

    async def unless_begun(self, wait: Callable[[], Awaitable[T]]) -> T:
        """What is waited for. Raises UnavailableError if the drain begins before it has come."""
        with trio.CancelScope() as scope:
            if self._begun:
                scope.cancel()
            self._waiting.add(scope)
            try:
                return await wait()
            finally:
                self._waiting.discard(scope)
        raise UnavailableError("Not ready: the server is shutting down")
