"""Responses that run without a client: each is a task of ours, recorded as it goes, which clients come and look at.

One per API server. `run` is a task of the composition root (app/service.py); app/routes/responses.py starts responses
here, and app/routes/stored_responses.py finds and cancels them. What one of them fails with ends that one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import final

import trio
from attrs import define, field

from app.failures import told
from app.responses.event_log import EndStatus, LoggedEvent
from app.responses.feed import Feed
from app.responses.store import ResponseStore
from app.responses.stored import UNDER_WAY
from app.schemas.responses import InputItem, ResponseError
from protocol.errors import StartError, TrillmError, UnavailableError

logger = logging.getLogger("trillm.responses")

MAX_LIVE = 1024
"""Under way at a time, with those that wait for room in the engine's queue."""
BATCH_SECONDS = 0.2
"""What is told within so long goes to the disk together. Clients of this server read it at once all the same."""
RECORDS_A_SECOND = 250
"""Of all together, so that the disk's one thread has time for those who ask: a record takes a tenth of a millisecond
among others, and nearly one while the event loop is busy. With more than fifty at a time, each is recorded less
often."""
LOOK_SECONDS = 1.0
"""How often the store is asked whether another server's client wants one ended that tells nothing."""


@define(eq=False)
class _Live:
    feed: Feed
    on_end: Callable[[], None]
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    failure: str | None = None
    """Why the server ends it; None when a client has cancelled it."""
    is_deleted: bool = False


@final
class BackgroundResponses:
    """Of one API server."""

    def __init__(self, store: ResponseStore | None = None) -> None:
        """Without a store there are none."""
        self.store = store
        self._live: dict[str, _Live] = {}
        self._nursery: trio.Nursery | None = None
        self._draining: str | None = None
        self._idle = trio.Event()

    async def run(self) -> None:
        """Owns them until it is cancelled, which ends what is left. Those of clients who come before the store is open
        wait for it, as all do that a store is asked. Raises StartError, see `ResponseStore.open`."""
        if self.store is None:
            return
        failure: StartError | None = None
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await self.store.open()
                await trio.sleep_forever()
            except StartError as error:
                failure = error
                nursery.cancel_scope.cancel()
            finally:
                self._nursery = None
                self.end_all("The server is shutting down")
        if failure is not None:
            raise failure

    async def start(
        self,
        feed: Feed,
        input_items: Sequence[InputItem],
        work: Callable[[], Awaitable[None]],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Keeps it and has `work` done, which tells the feed's log, in a task of its own. Returns when it is kept.
        `on_end` is called once its end is recorded.

        Raises UnavailableError for a store that does not work, for too many of them, and while the server stops."""
        store = self.store
        if self._nursery is None or store is None or self._draining is not None:
            raise UnavailableError(f"Not ready: {self._draining or 'the server is starting'}")
        if len(self._live) >= MAX_LIVE:
            raise UnavailableError(f"{len(self._live)} responses run in the background, which is the most at a time")
        live = self._live[feed.log.id] = _Live(feed, on_end)
        is_started = False
        try:
            await store.put(feed.log, input_items)
            if self._nursery is None:
                raise UnavailableError("Not ready: the server is shutting down")
            self._nursery.start_soon(self._live_through, live, work, store)
            is_started = True
        finally:
            if not is_started:
                self._forget(live)
                # It may have been written all the same, by a disk that was only slow.
                await self._end(feed, "failed", "The response was not begun", store)

    def num_by_status(self) -> dict[str, int]:
        """How many are queued and how many are in progress."""
        counts = dict.fromkeys(UNDER_WAY, 0)
        for live in self._live.values():
            if live.feed.log.status in counts:  # the others have an end that is being recorded
                counts[live.feed.log.status] += 1
        return counts

    @property
    def num_live(self) -> int:
        """How many have no end yet."""
        return sum(self.num_by_status().values())

    def feed(self, response_id: str) -> Feed | None:
        """Of one that is under way here."""
        live = self._live.get(response_id)
        return None if live is None or live.is_deleted else live.feed

    def cancel(self, response_id: str) -> None:
        """If it is under way here. Its engine requests are aborted when its task next runs."""
        live = self._live.get(response_id)
        if live is not None:
            live.scope.cancel()

    def delete(self, response_id: str) -> None:
        """It is cancelled, and not found any more from now on."""
        self.cancel(response_id)
        live = self._live.get(response_id)
        if live is not None:
            live.is_deleted = True

    def drain(self, reason: str) -> None:
        """No more are taken; those under way go on."""
        self._draining = reason

    def end_all(self, reason: str) -> None:
        """They fail, for this reason."""
        self.drain(reason)
        for live in self._live.values():
            live.failure = reason
            live.scope.cancel()

    async def finish(self, seconds: float = math.inf) -> None:
        """Waits until none is under way and the end of each is recorded, and closes the store. What has no end after
        so many seconds fails; without a limit somebody else sees to it that they end: see `end_all`."""
        self.drain("the server is shutting down")
        with trio.move_on_after(seconds):
            await self._until_idle()
        if self._live:
            self.end_all("The server is shutting down")
            await self._until_idle()
        if self.store is not None:
            await self.store.close()

    async def _until_idle(self) -> None:
        while self._live:
            await self._idle.wait()

    async def _live_through(self, live: _Live, work: Callable[[], Awaitable[None]], store: ResponseStore) -> None:
        # Recording goes on until the end is told, whoever cancels what is recorded.
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._record, live, store)
                    await self._work(live, work, store)
        finally:
            self._forget(live)
            live.on_end()

    async def _work(self, live: _Live, work: Callable[[], Awaitable[None]], store: ResponseStore) -> None:
        log = live.feed.log
        message = "The server ended this response"
        try:
            with live.scope:
                await work()
        except Exception as error:  # a task of ours: nobody else would hear of it
            if not isinstance(error, TrillmError):
                logger.error("response %s failed", log.id, exc_info=error)
            message = told(error) if isinstance(error, TrillmError) else "Internal error; the server's log has it"
        is_cancelled = live.scope.cancelled_caught and live.failure is None
        await self._end(live.feed, "cancelled" if is_cancelled else "failed", live.failure or message, store)

    async def _end(self, feed: Feed, status: EndStatus, message: str, store: ResponseStore) -> None:
        """Unless it has an end already."""
        if feed.log.ended:
            return
        error = ResponseError("server_error", message) if status == "failed" else None
        feed.log.settle(status, error=error)
        with trio.CancelScope(shield=True):
            await store.ended(feed.log)
        feed.log.publish()

    async def _record(self, live: _Live, store: ResponseStore) -> None:
        """In batches. The end is recorded by who settles it."""
        log = live.feed.log
        written = -1
        while True:
            events: list[LoggedEvent] = []
            with trio.move_on_after(LOOK_SECONDS):
                events = await live.feed.after(written)
            if log.last is not None:
                return
            try:
                goes_on = await store.record(log, events)
            except UnavailableError:
                await trio.sleep(LOOK_SECONDS)  # they stay in the log, and are recorded later
                continue
            if events:
                written = events[-1].number
            if not goes_on:
                live.scope.cancel()
            with trio.move_on_after(max(BATCH_SECONDS, len(self._live) / RECORDS_A_SECOND)):
                await live.feed.wait_ended()

    def _forget(self, live: _Live) -> None:
        del self._live[live.feed.log.id]
        if not self._live:
            self._idle.set()
            self._idle = trio.Event()
