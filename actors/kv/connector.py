"""What a KV connector decides, for one window: takes what the engine says, and says what it is to hear. Pure but for
the clock, which is given; the disk and the peers do what it starts there, and tell it how that ended. Used by
actors/kv/tenancy.

Of a find's blocks those in memory are pinned at once. What is missing comes from the peer that gave the ticket, or else
from the disk; whoever else waits for the same block waits with it. At the latest at the find's end its answer is said,
with what is here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, assert_never, final

from actors.kv.counters import Counters
from actors.kv.finds import Find
from actors.kv.frames import Frames, FrameState, Pin
from actors.kv.leases import Leases
from actors.kv.lending import Fetched, FetchError, LeaseId
from protocol.ids import Epoch
from protocol.kv import (
    BlockHash,
    FindId,
    KvExport,
    KvExported,
    KvFind,
    KvFound,
    KvInput,
    KvLeave,
    KvOutput,
    KvReset,
    KvResetDone,
    KvRoom,
    KvSaved,
)

MOST_GRANTED = 64
"""Frames that the engine has to write to."""

logger = logging.getLogger("trillm.kv")


class Blocks(Protocol):
    """The disk as a connector sees it: actors.kv.disk. Nothing here waits."""

    def has(self, block_hash: BlockHash) -> bool: ...
    def want(self, block_hash: BlockHash) -> None: ...
    def offer(self, block_hash: BlockHash) -> None: ...
    def touch(self, block_hash: BlockHash) -> None: ...
    def reset(self, done: Callable[[], None]) -> None: ...


class Fetches(Protocol):
    """What the peers are asked for: actors.kv.tenancy. Nothing here waits."""

    def begin(self, find_id: FindId, ticket: bytes, hashes: Sequence[BlockHash]) -> None:
        """Ends with `Connector.end_fetch`, if it is not stopped before."""

    def stop(self, find_id: FindId) -> None:
        """Nothing comes of it any more, and its frames are given back."""

    def ticket(self, lease_id: LeaseId, num_blocks: int) -> bytes: ...


def num_granted_of(num_frames: int) -> int:
    """How many frames of a window the engine has to write to."""
    return max(1, min(MOST_GRANTED, num_frames // 4))


@final
class Connector:
    """Of one window. Fulfils actors.kv.disk.FrameDesk."""

    def __init__(
        self,
        kv_epoch: Epoch,
        frames: Frames,
        leases: Leases,
        disk: Blocks,
        fetches: Fetches,
        counters: Counters,
        say: Callable[[KvOutput], None],
        clock: Callable[[], float],
    ) -> None:
        self._kv_epoch = kv_epoch
        self._frames = frames
        self._leases = leases
        self._disk = disk
        self._fetches = fetches
        self._counters = counters
        self._say_to_engine = say
        self._clock = clock
        self._num_to_grant = num_granted_of(frames.num_frames)
        self._engine: Epoch | None = None
        self._finds: dict[FindId, Find] = {}
        self._coming: dict[BlockHash, set[FindId]] = {}
        """Blocks on their way to memory, and whose finds wait for them."""
        self._left_behind: list[int] = []
        """Frames that an engine could write to which is gone, until its successor is there: then all its ranks are."""
        self._num_resets = 0
        self._reading: dict[BlockHash, int] = {}
        """Blocks that the disk reads just now, and how many resets there had been before: what was to be forgotten
        meanwhile is."""

    # ------------------------------------------------------------------ the engine

    def engine_came(self, epoch: Epoch) -> None:
        """Its predecessor is no more."""
        self.engine_went()
        for frame in self._left_behind:
            self._frames.release(frame)
        self._left_behind.clear()
        self._engine = epoch
        self._grant()

    def engine_went(self) -> None:
        """What it looked for and what it could write to is over; what it has saved and exported stays."""
        self._engine = None
        for find in list(self._finds.values()):
            self._leave(find)
        for frame in self._frames.granted:
            self._frames.quarantine(frame)
            self._left_behind.append(frame)

    def hear(self, message: KvInput) -> None:
        """Of another incarnation: ignored."""
        if message.epoch != self._engine:
            return
        match message:
            case KvFind():
                self._look_for(message)
            case KvLeave(find_ids=find_ids):
                for find_id in find_ids:
                    if (find := self._finds.get(find_id)) is not None:
                        self._leave(find)
            case KvSaved(frames=frames, hashes=hashes):
                self._take_saved(frames, hashes)
            case KvExport():
                self._export(message)
            case KvReset(call_id=call_id):
                self._reset(message.epoch, call_id)
            case _:
                assert_never(message)
        self._grant()

    def _say(self, message: KvOutput) -> None:
        if message.epoch == self._engine:
            self._say_to_engine(message)

    def _grant(self) -> None:
        if self._engine is not None:
            lacking = self._num_to_grant - self._frames.num_granted
            if lacking * 4 >= self._num_to_grant and (frames := self._frames.grant(lacking)):
                self._say(KvRoom(self._engine, self._kv_epoch, frames))

    def _take_saved(self, frames: list[int], hashes: Sequence[BlockHash | None]) -> None:
        """Of a chain, in its order: the last ones are to be given up first."""
        if len(frames) != len(hashes):
            logger.error("the engine names %d frames and %d blocks", len(frames), len(hashes))
            return
        for frame, block_hash in reversed(list(zip(frames, hashes, strict=True))):
            if self._frames.state(frame) is not FrameState.GRANTED:
                logger.error("the engine has saved to frame %d, which is %s", frame, self._frames.state(frame))
            elif block_hash is None:
                self._frames.give_back(frame)
            else:
                self._frames.save(frame, block_hash)
                self._counters.saved += 1
        for block_hash in hashes:
            if block_hash is not None:
                self._disk.offer(block_hash)

    def _export(self, message: KvExport) -> None:
        granted = self._leases.grant(message.hashes)
        ticket, num_blocks = b"", 0
        if granted is not None:
            lease_id, num_blocks = granted
            if not (ticket := self._fetches.ticket(lease_id, num_blocks)):
                self._leases.give_back(lease_id)
                num_blocks = 0
        self._say(KvExported(message.epoch, self._kv_epoch, message.export_id, ticket, num_blocks))

    def _reset(self, epoch: Epoch, call_id: int) -> None:
        self._num_resets += 1
        self._frames.forget_all()
        self._disk.reset(lambda: self._say(KvResetDone(epoch, self._kv_epoch, call_id)))

    # ------------------------------------------------------------------ time

    @property
    def next_deadline(self) -> float:
        """When `tick` is due; inf if nothing waits."""
        finds = min((find.ends_at for find in self._finds.values() if not find.is_answered), default=math.inf)
        return min(finds, self._leases.next_expiry)

    def tick(self) -> None:
        now = self._clock()
        for find in list(self._finds.values()):
            if not find.is_answered and find.ends_at <= now:
                if find.fetching:
                    find.error = "the blocks of the ticket did not come in time"
                    self._counters.failures["timeout"] += 1
                self._answer(find)
        self._leases.expire()
        self._grant()

    # ------------------------------------------------------------------ finds

    def _look_for(self, message: KvFind) -> None:
        if message.find_id in self._finds:
            return
        find = self._finds[message.find_id] = Find.of(message, self._clock())
        self._look(find)
        self._counters.looked("memory", len(find.hashes), len(find.frames))
        for place in find.frames:
            self._disk.touch(find.hashes[place])

    def _look(self, find: Find) -> None:
        """Pin what is here, and see to the rest: until there is nothing more to wait for."""
        from_peer: list[BlockHash] = []
        for place, block_hash in enumerate(find.hashes):
            if place in find.frames:
                continue
            if (frame := self._frames.find(block_hash)) is not None:
                self._frames.pin(frame, Pin.USE)
                find.frames[place] = frame
            elif block_hash in self._coming and block_hash not in find.in_vain:
                self._wait_for(find, block_hash)
            elif find.may_ask_peer:
                from_peer.append(block_hash)
            elif block_hash not in find.in_vain and self._disk.has(block_hash):
                self._wait_for(find, block_hash)
                self._counters.looked("disk", 1)
                self._disk.want(block_hash)
            else:
                break
        if from_peer:
            find.has_asked_peer, find.fetching = True, from_peer
            for block_hash in from_peer:
                self._wait_for(find, block_hash)
            self._counters.looked("peer", len(from_peer))
            self._fetches.begin(find.find_id, find.ticket, from_peer)
        if not find.waiting:
            self._answer(find)

    def _wait_for(self, find: Find, block_hash: BlockHash) -> None:
        find.waiting.add(block_hash)
        self._coming.setdefault(block_hash, set()).add(find.find_id)

    def _came(self, block_hash: BlockHash, frame: int | None) -> None:
        """It is in this frame, or will not come on this way."""
        ready = []
        for find_id in self._coming.pop(block_hash, ()):
            find = self._finds[find_id]
            find.waiting.discard(block_hash)
            if frame is not None:
                self._frames.pin(frame, Pin.USE)
                find.frames[find.places[block_hash]] = frame
            ready.append(find)
        for find in ready:
            self._go_on(find)

    def _go_on(self, find: Find) -> None:
        """Once nothing more is on its way for it."""
        if self._engine is not None and not (find.is_answered or find.waiting or find.fetching):
            self._look(find)

    def _answer(self, find: Find) -> None:
        """With the blocks that are here, up to the first one that is not."""
        assert self._engine is not None, "finds end with their engine"
        find.is_answered = True
        self._stop_waiting(find)
        chain = find.chain()
        error = find.error if len(chain) < len(find.hashes) else None
        beyond = [frame for place, frame in sorted(find.frames.items()) if place >= len(chain)]
        self._frames.unpin(beyond, Pin.USE)
        find.frames = dict(enumerate(chain))
        if not chain:
            del self._finds[find.find_id]
        self._say(KvFound(self._engine, self._kv_epoch, find.find_id, chain, error))

    def _leave(self, find: Find) -> None:
        del self._finds[find.find_id]
        self._stop_waiting(find)
        self._frames.unpin([frame for _, frame in sorted(find.frames.items())], Pin.USE)

    def _stop_waiting(self, find: Find) -> None:
        waiting, find.waiting = find.waiting, set()
        for block_hash in waiting:
            self._coming[block_hash].discard(find.find_id)
        if find.fetching:
            fetching, find.fetching = find.fetching, []
            self._fetches.stop(find.find_id)
            self._fetch_is_over(fetching)

    # ------------------------------------------------------------------ fetching from others

    def take_for_fetch(self, most: int) -> list[int]:
        return self._frames.take_for_import(most)

    def end_fetch(self, find_id: FindId, frames: Sequence[int], fetched: Fetched, *, lacked_room: bool) -> None:
        """The first of what was asked for is in the first of these frames, whole and confirmed. The others are given
        back."""
        self._counters.fetched(fetched)
        find = self._finds[find_id]
        hashes, find.fetching = find.fetching, []
        if lacked_room:
            find.error = f"there was room for only {fetched.num_blocks} blocks of the ticket"
        arrived = list(zip(hashes, frames[: fetched.num_blocks], strict=False))
        self.drop_fetched(frames[len(arrived) :])
        # All are pinned before anybody looks for more, which may need room.
        held = [self._frames.imported(frame, block_hash) for block_hash, frame in arrived]
        for frame in held:
            self._frames.pin(frame, Pin.USE)
        for block_hash, frame in zip(hashes, held, strict=False):
            self._came(block_hash, frame)
            self._disk.offer(block_hash)
        self._fetch_is_over(hashes[len(held) :])
        self._go_on(find)
        self._frames.unpin(held, Pin.USE)

    def fail_fetch(self, find_id: FindId, frames: Sequence[int], error: FetchError) -> None:
        """Nothing of it is to be believed."""
        self._counters.failures[error.kind] += 1
        self.drop_fetched(frames)
        find = self._finds[find_id]
        hashes, find.fetching = find.fetching, []
        find.error = str(error)
        self._fetch_is_over(hashes)
        self._go_on(find)

    def drop_fetched(self, frames: Iterable[int]) -> None:
        """But those in quarantine, which `quarantine`'s answer releases."""
        for frame in frames:
            if self._frames.state(frame) is FrameState.IMPORTING:
                self._frames.drop(frame)

    def quarantine(self, frames: Sequence[int]) -> Callable[[], None]:
        """A transport may write to them until it calls what this gives."""
        kept = [frame for frame in frames if self._frames.state(frame) is FrameState.IMPORTING]
        for frame in kept:
            self._frames.quarantine(frame)

        def release() -> None:
            while kept:
                self._frames.release(kept.pop())

        return release

    def _fetch_is_over(self, hashes: Iterable[BlockHash]) -> None:
        """These have not come by it."""
        for block_hash in hashes:
            self._came(block_hash, None)

    # ------------------------------------------------------------------ FrameDesk

    def begin_read(self, block_hash: BlockHash) -> int | None:
        if not self._coming.get(block_hash):
            self._coming.pop(block_hash, None)
            return None
        frames = self._frames.take_for_import(1)
        if not frames:
            self._is_in_vain(block_hash)
            return None
        self._reading[block_hash] = self._num_resets
        return frames[0]

    def end_read(self, block_hash: BlockHash, frame: int | None, *, is_there: bool) -> None:
        if frame is None:
            self._is_in_vain(block_hash)
        elif not is_there or self._reading.pop(block_hash, None) != self._num_resets:
            self._reading.pop(block_hash, None)
            self._frames.drop(frame)
            self._is_in_vain(block_hash)
        else:
            self._counters.looked("disk", 0, 1)
            self._came(block_hash, self._frames.imported(frame, block_hash))

    def begin_store(self, block_hash: BlockHash) -> int | None:
        frame = self._frames.peek(block_hash)
        if frame is not None:
            self._frames.pin(frame, Pin.USE)
        return frame

    def end_store(self, frame: int) -> None:
        self._frames.unpin([frame], Pin.USE)

    def _is_in_vain(self, block_hash: BlockHash) -> None:
        for find_id in self._coming.get(block_hash, ()):
            self._finds[find_id].in_vain.add(block_hash)
        self._came(block_hash, None)
