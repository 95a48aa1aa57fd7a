"""What other connectors are asked for, by tickets: each fetch is a task, which ends by itself or is stopped. Used by
actors/kv/tenancy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, final

import trio
from attrs import define, field

from actors.kv.frames import Frames, FrameState
from actors.kv.lending import Fetched, FetchError, Peers
from protocol.kv import BlockHash, FindId

MOST_AT_ONCE = 16
"""Tickets that are given back just now, and below those that wait for that."""
MOST_WAITING = 1024

logger = logging.getLogger("trillm.kv")


class FetchDesk(Protocol):
    """Who is told how fetches end that are not stopped: actors.kv.finds."""

    def end_fetch(self, find_id: FindId, frames: Sequence[int], fetched: Fetched, *, lacked_room: bool) -> None: ...
    def fail_fetch(self, find_id: FindId, error: FetchError) -> None: ...


@define(eq=False)
class _Fetch:
    find_id: FindId
    ticket: bytes
    hashes: Sequence[BlockHash]
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    frames: list[int] = field(factory=list)
    lacked_room: bool = False
    is_stopped: bool = False


@final
class Fetching:
    """For one window. Fulfils actors.kv.sources.Fetches while `run` runs."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._fetches: dict[FindId, _Fetch] = {}
        self._num_declined = 0
        """And not given back yet."""
        self._limiter = trio.CapacityLimiter(MOST_AT_ONCE)
        self._nursery: trio.Nursery | None = None
        self._peers: Peers | None = None
        self._desk: FetchDesk | None = None

    async def run(
        self, peers: Peers, desk: FetchDesk, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Until cancelled. Nothing may be begun any more by then."""
        self._peers, self._desk = peers, desk
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    # ------------------------------------------------------------------ Fetches

    def begin(self, find_id: FindId, ticket: bytes, hashes: Sequence[BlockHash]) -> None:
        assert self._nursery is not None, "it has begun"
        fetch = self._fetches[find_id] = _Fetch(find_id, ticket, hashes)
        self._nursery.start_soon(self._fetch, fetch)

    def stop(self, find_id: FindId) -> None:
        fetch = self._fetches.pop(find_id)
        fetch.is_stopped = True
        fetch.scope.cancel()

    def decline(self, ticket: bytes) -> None:
        """Unless very many wait for it: a lease ends by itself, too."""
        if self._num_declined < MOST_WAITING:
            assert self._nursery is not None, "it has begun"
            self._num_declined += 1
            self._nursery.start_soon(self._decline, ticket)

    # ------------------------------------------------------------------ the tasks

    async def _decline(self, ticket: bytes) -> None:
        """Fetching nothing gives the lease back."""
        assert self._peers is not None, "it has begun"
        try:
            async with self._limiter:
                await self._peers.fetch(ticket, [], lambda _: [], self._quarantine)
        except FetchError as error:
            logger.debug("a ticket that is of no use could not be given back: %s", error)
        except Exception:
            logger.exception("a ticket could not be given back by our mistake")
        finally:
            self._num_declined -= 1

    async def _fetch(self, fetch: _Fetch) -> None:
        assert self._peers is not None, "it has begun"
        assert self._desk is not None, "it has begun"

        def take(most: int) -> list[int]:
            taken = self._frames.take_for_import(most)
            fetch.frames += taken
            fetch.lacked_room |= len(taken) < most
            return taken

        ended: Fetched | FetchError | None = None
        with fetch.scope:
            try:
                ended = await self._peers.fetch(fetch.ticket, fetch.hashes, take, self._quarantine)
            except FetchError as error:
                ended = error
            except Exception as error:
                logger.exception("blocks could not be fetched by our mistake")
                ended = FetchError("broken", f"{type(error).__name__}: {error}")
        arrived = 0 if fetch.is_stopped or not isinstance(ended, Fetched) else ended.num_blocks
        self._drop(fetch.frames[arrived:])
        if fetch.is_stopped or ended is None:
            return
        del self._fetches[fetch.find_id]
        if isinstance(ended, FetchError):
            self._desk.fail_fetch(fetch.find_id, ended)
        else:
            self._desk.end_fetch(fetch.find_id, fetch.frames[:arrived], ended, lacked_room=fetch.lacked_room)

    # ------------------------------------------------------------------ frames

    def _drop(self, frames: Sequence[int]) -> None:
        """But those in quarantine, which `_quarantine`'s answer releases."""
        for frame in frames:
            if self._frames.state(frame) is FrameState.IMPORTING:
                self._frames.drop(frame)

    def _quarantine(self, frames: Sequence[int]) -> Callable[[], None]:
        """A transport may write to them until it calls what this gives."""
        kept = [frame for frame in frames if self._frames.state(frame) is FrameState.IMPORTING]
        for frame in kept:
            self._frames.quarantine(frame)

        def release() -> None:
            while kept:
                self._frames.release(kept.pop())

        return release
