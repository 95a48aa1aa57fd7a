"""The way between the engine's scheduler and its connector: it has the runner map the connector's window, and carries
what either says. Used by actors/engine/main.py.

Whatever goes wrong here, the engine goes on without a connector until the next one comes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, final

import attrs
import trio

from actors.engine.scheduler import Addressed, Scheduler
from actors.engine.stepper import Stepper
from protocol.ids import Epoch
from protocol.kv import KvInput, KvOutput
from protocol.links import Inbox, receive_batch
from protocol.spec import Kv, KvFacts

EXPECTED_SECONDS = 2.0
"""How long a new engine lets requests wait for its connector to come: what was computed before lies there."""
MOST_EARLY = 1024
"""Messages kept of a connector that has not been announced yet."""

logger = logging.getLogger("trillm.engine")


class ClosableOutbox(Protocol):
    def send_nowait(self, value: KvInput) -> None: ...

    def close(self) -> None: ...


@attrs.frozen
class KvAccess:
    """What an engine has of the world of connectors."""

    epoch: Epoch
    """The engine's."""
    announced: Inbox[Kv]
    inbox: Inbox[KvOutput]
    connect: Callable[[str], ClosableOutbox]
    """To a connector's inbox. Raises OSError."""


@final
class KvLink:
    """Of one engine, over all connectors that it has."""

    def __init__(
        self,
        access: KvAccess,
        scheduler: Scheduler,
        stepper: Stepper,
        publish: Callable[[Iterable[Addressed]], None],
        moved: Callable[[], None],
    ) -> None:
        """`publish` sends outputs of requests; `moved` is called whenever the scheduler may have something to do."""
        self._access = access
        self._scheduler = scheduler
        self._stepper = stepper
        self._publish = publish
        self._moved = moved
        self._facts: KvFacts | None = None
        self._outbox: ClosableOutbox | None = None
        self._early: deque[KvOutput] = deque(maxlen=MOST_EARLY)
        """The links are two: what a connector says may be here before it is announced."""

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear)
            while True:
                await self._change((await self._access.announced.receive()).facts)

    def flush(self) -> None:
        """Send what the scheduler has to say."""
        if self._outbox is not None:
            for message in self._scheduler.kv.take_messages():
                self._outbox.send_nowait(message)

    async def _change(self, facts: KvFacts | None) -> None:
        if facts is not None and (facts.engine_epoch != self._access.epoch or facts == self._facts):
            return
        if facts is None or self._facts is not None:
            self._let_go()
        try:
            # Behind all plans until now, which know the old window; those that are made meanwhile copy nothing.
            attached = None if facts is None else facts.window
            await self._stepper.apply(lambda runner: runner.attach_frames(attached))
            if facts is not None:
                self._outbox = self._access.connect(facts.inbox_address)
        except OSError as error:
            logger.warning("the connector's memory cannot be had, so KV blocks are neither saved nor loaded: %s", error)
            self._let_go()
            return
        if facts is not None:
            self._facts = facts
            self._scheduler.kv.connect(facts.kv_epoch, facts.window.num_frames)
            early = list(self._early)
            self._early.clear()
            self._take_in(early)
            window = facts.window
            gibibytes = window.num_frames * window.layout.frame_bytes / 2**30
            logger.info("its KV connector is there, with %.2f GiB for %d blocks", gibibytes, window.num_frames)

    def _let_go(self) -> None:
        self._facts = None
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
        self._publish(self._scheduler.lose_connector())
        self._moved()

    async def _hear(self) -> None:
        while True:
            self._take_in(await receive_batch(self._access.inbox))

    def _take_in(self, messages: Iterable[KvOutput]) -> None:
        for message in messages:
            if message.epoch != self._access.epoch:
                continue
            if self._facts is not None and message.kv_epoch == self._facts.kv_epoch:
                self._publish(self._scheduler.hear_connector(message))
            elif self._facts is None or message.kv_epoch > self._facts.kv_epoch:
                self._early.append(message)
        self.flush()
        self._moved()
