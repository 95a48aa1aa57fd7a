"""A transport as transports are at their worst: it delays, writes out of order and twice, loses its end, and goes on
writing after it has been told to stop. Its owner's window is in the same process."""

from __future__ import annotations

import trio

from actors.kv.conversation import Conversation
from actors.kv.transports.transport import NotStartedError, Reading
from actors.kv.window import Window


class UnrulyTransport:
    name = "unruly"
    is_local = False

    def __init__(self, owner: Window, nursery: trio.Nursery, *, delay: float = 0.0) -> None:
        self._owner = owner
        self._nursery = nursery
        self._delay = delay
        self.stops_at_once = False
        self.starts = True
        self.loses_the_end = False
        """Everything is written, and `read` does not return."""
        self.late = trio.Event()
        """When set, what was cancelled is written after all."""
        self._unsettled = 0
        self._settled = trio.Event()

    async def read(self, conversation: Conversation, reading: Reading) -> None:
        if not self.starts:
            raise NotStartedError("it has no wish to")
        try:
            await trio.sleep(self._delay)
            _write(self._owner, reading)
            if self.loses_the_end:
                await trio.sleep_forever()
        except trio.Cancelled:
            self._unsettled += 1
            self._nursery.start_soon(self._write_late, reading)
            raise

    async def _write_late(self, reading: Reading) -> None:
        await self.late.wait()
        _write(self._owner, reading)
        self._unsettled -= 1
        if not self._unsettled:
            self._settled.set()

    async def settle(self) -> None:
        await self._settled.wait()


def _write(owner: Window, reading: Reading) -> None:
    """Backwards, and twice."""
    for source, frame in [*reversed(list(zip(reading.sources, reading.frames, strict=True)))] * 2:
        reading.window.frame(frame)[:] = owner.frame(source)
