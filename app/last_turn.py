"""A request that has come before the answer to the one before it was over waits in hypercorn for its turn on the
connection. When the server leaves meanwhile there is no such turn, and hypercorn's reader waits for ever: the shutdown
took as long as it may. This tells the reader that there is nothing more to be read. Used by app/hypercorn_mended.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.typing import WorkerContext


class LastTurnConnection(h11.Connection):
    """Of one connection to the server of `context`."""

    def __init__(self, context: WorkerContext, max_incomplete_event_size: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=max_incomplete_event_size)
        self._context = context

    def next_event(self) -> Any:  # noqa: ANN401 - h11's own
        event = super().next_event()
        # The answer is whole, and the connection is closed next.
        is_over = event is h11.PAUSED and self.our_state is h11.DONE and self._context.terminated.is_set()
        return h11.NEED_DATA if is_over else event


@contextmanager
def last_turns() -> Iterator[None]:
    """For connections that are opened meanwhile, in this process."""
    original = H11Protocol.__init__

    def with_last_turn(self: H11Protocol, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever hypercorn says
        original(self, *args, **kwargs)
        self.connection = LastTurnConnection(self.context, self.config.h11_max_incomplete_size)

    H11Protocol.__init__ = with_last_turn
    try:
        yield
    finally:
        H11Protocol.__init__ = original
