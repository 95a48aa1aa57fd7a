"""Spans on their way to the collector: never in anybody's way.

Whoever has ended a span puts it here, which takes no time and cannot fail: if there is no room, it is counted and
dropped. One task takes batches out and has them sent in a thread, one at a time. A collector that is down or hangs
costs one line in the log a minute, and spans.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar, final

import trio

logger = logging.getLogger("trillm.tracing")

T = TypeVar("T")

COMPLAINT_SECONDS = 60.0
"""Between two lines about what could not be sent."""
SEND_SECONDS = 30.0
"""For one batch; the exporter's own deadline (OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, 10 s) is normally the shorter one."""
FLUSH_SECONDS = 3.0
"""For what is left when the server stops."""
MAX_REASON = 200

Send = Callable[[Sequence[T]], str | None]
"""Called in a thread. Sends them; why they are lost, None if they are not. What it raises loses them as well."""
InThread = Callable[[Callable[[], str | None]], Awaitable[str | None]]
"""Has it done, and waits for that; not any longer when cancelled."""


def one_at_a_time(limiter: trio.CapacityLimiter) -> InThread:
    """One that hangs keeps its place, so that there is never more than one thread."""

    async def in_thread(send: Callable[[], str | None]) -> str | None:
        return await trio.to_thread.run_sync(send, abandon_on_cancel=True, limiter=limiter)

    return in_thread


@final
class SpanExport(Generic[T]):
    """`run` is somebody's task."""

    def __init__(
        self,
        send: Send[T],
        close: Callable[[], None],
        *,
        max_queue: int,
        max_batch: int,
        delay: float,
        where: str,
        in_thread: InThread | None = None,
    ) -> None:
        """`close`: makes a `send` in a thread give up soon; called from another thread. `max_queue`: spans that may
        wait, `max_batch`: that are sent together; `delay`: seconds after which fewer are sent. `where`: for the log."""
        self._send = send
        self._close = close
        self._max_queue = max_queue
        self._max_batch = min(max_batch, max_queue)
        self._delay = delay
        self._where = where
        self._queue: deque[T] = deque()
        self._is_full = trio.Event()
        self._is_stopping = False
        self._num_sending = 0
        """Of a batch whose fate is not known."""
        self._in_thread = in_thread or one_at_a_time(trio.CapacityLimiter(1))
        self._complained_at = -math.inf
        self._num_complained = 0
        self._is_well = True
        self._is_to_tell = True
        """The next that arrive are worth a line: they are the first, or some before them were lost."""
        self.num_exported = 0
        self.num_failed = 0
        """Sent in vain."""
        self.num_dropped = 0
        """There was no room for them."""

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def put(self, span: T) -> None:
        if len(self._queue) >= self._max_queue:
            self.num_dropped += 1
            self._complain("they come faster than they can be sent")
            return
        self._queue.append(span)
        if len(self._queue) >= self._max_batch:
            self._is_full.set()

    async def run(self) -> None:
        """Send what comes, until cancelled; then what is under way or left, if the collector is well."""
        scope = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_what_comes, scope)
            try:
                await trio.sleep_forever()
            finally:
                self._is_stopping = True
                self._is_full.set()
                scope.deadline = trio.current_time() + (FLUSH_SECONDS if self._is_well else 0)

    async def _send_what_comes(self, scope: trio.CancelScope) -> None:
        with scope:
            while not self._is_stopping:
                with trio.move_on_after(self._delay):
                    await self._is_full.wait()
                self._is_full = trio.Event()
                await self._send_waiting()
        self._close()
        if lost := self._num_sending + len(self._queue):
            logger.warning("traces: %s spans were not sent to %s before the server stopped", lost, self._where)

    async def _send_waiting(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
            self._num_sending = len(batch)
            reason: str | None = f"no answer within {SEND_SECONDS:g} s"
            try:
                with trio.move_on_after(SEND_SECONDS):
                    reason = await self._in_thread(partial(self._send, batch))
            except Exception as error:  # somebody else's code: whatever is wrong with it costs spans, and no server
                reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
            self._num_sending = 0
            self._is_well = reason is None
            if reason is None:
                self.num_exported += len(batch)
                self._tell_of_arrival()
            else:
                self.num_failed += len(batch)
                self._complain(reason)

    def _complain(self, reason: str) -> None:
        now = trio.current_time()
        if now < self._complained_at + COMPLAINT_SECONDS:
            return
        lost = self.num_failed + self.num_dropped
        logger.warning(
            "traces: %s spans could not be sent to %s: %s. Requests are answered all the same",
            lost - self._num_complained,
            self._where,
            reason,
        )
        self._complained_at, self._num_complained, self._is_to_tell = now, lost, True

    def _tell_of_arrival(self) -> None:
        if self._is_to_tell:
            logger.info("traces: spans arrive at %s", self._where)
            self._is_to_tell = False
