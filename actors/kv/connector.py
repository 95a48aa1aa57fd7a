"""What a KV connector decides, for one window: takes what the engine says, and says what it is to hear. Pure but for
the clock, which is given; the disk and the peers do what is begun there, and tell how it ended. Used by
actors/kv/tenancy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import assert_never, final

from actors.kv.counters import Counters
from actors.kv.finds import Finds
from actors.kv.frames import Frames, FrameState
from actors.kv.leases import Leases
from actors.kv.lending import LeaseId
from actors.kv.sources import Blocks
from protocol.ids import Epoch
from protocol.kv import (
    BlockHash,
    FindId,
    KvDecline,
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
    KvUsed,
)

MOST_GRANTED = 64
"""Frames that the engine has to write to."""

logger = logging.getLogger("trillm.kv")


GiveTicket = Callable[[LeaseId, int], bytes]
"""For a lease with so many blocks: actors.kv.lending.Peers.ticket."""


def num_granted_of(num_frames: int) -> int:
    """How many frames of a window the engine has to write to."""
    return max(1, min(MOST_GRANTED, num_frames // 4))


@final
class Connector:
    """Of one window."""

    def __init__(
        self,
        kv_epoch: Epoch,
        frames: Frames,
        leases: Leases,
        finds: Finds,
        disk: Blocks,
        counters: Counters,
        give_ticket: GiveTicket,
        say: Callable[[KvOutput], None],
    ) -> None:
        """`say` is for the engine that is there."""
        self._kv_epoch = kv_epoch
        self._frames = frames
        self._leases = leases
        self._finds = finds
        self._disk = disk
        self._counters = counters
        self._give_ticket = give_ticket
        self._say_to_engine = say
        self._num_to_grant = num_granted_of(frames.num_frames)
        self._engine: Epoch | None = None
        self._left_behind: list[int] = []
        """Frames that an engine could write to which is gone, until its successor is there: then all its ranks are."""

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
        self._finds.leave_all()
        for frame in self._frames.granted:
            self._frames.quarantine(frame)
            self._left_behind.append(frame)

    def hear(self, message: KvInput) -> None:
        """Of another incarnation: ignored."""
        if message.epoch != self._engine:
            return
        match message:
            case KvFind():
                self._finds.look_for(message)
            case KvLeave(find_ids=find_ids):
                for find_id in find_ids:
                    self._finds.leave(find_id)
            case KvDecline(ticket=ticket):
                self._finds.decline(ticket)
            case KvSaved(frames=frames, hashes=hashes):
                self._take_saved(frames, hashes)
            case KvUsed(hashes=hashes):
                self._touch(hashes)
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

    def _touch(self, chain: Sequence[BlockHash]) -> None:
        """The last one first, so that it is the first to be given up."""
        for block_hash in reversed(chain):
            self._frames.find(block_hash)
            self._disk.touch(block_hash)

    def _export(self, message: KvExport) -> None:
        self._touch(message.hashes)
        granted = self._leases.grant(message.hashes)
        ticket, num_blocks = b"", 0
        if granted is not None:
            lease_id, num_blocks = granted
            if not (ticket := self._give_ticket(lease_id, num_blocks)):
                self._leases.give_back(lease_id)
                num_blocks = 0
        self._say(KvExported(message.epoch, self._kv_epoch, message.export_id, ticket, num_blocks))

    def _reset(self, epoch: Epoch, call_id: int) -> None:
        self._frames.forget_all()
        self._finds.forget_arriving()
        self._disk.reset(lambda: self._say(KvResetDone(epoch, self._kv_epoch, call_id)))

    def answer(self, find_id: FindId, frames: list[int], error: str | None) -> None:
        """What `Finds` found."""
        if self._engine is not None:
            self._say(KvFound(self._engine, self._kv_epoch, find_id, frames, error))

    # ------------------------------------------------------------------ time

    @property
    def next_deadline(self) -> float:
        """When `tick` is due; inf if nothing waits."""
        return min(self._finds.next_deadline, self._leases.next_expiry)

    def tick(self) -> None:
        """What is due, and what can be now that others have given frames back."""
        self._finds.answer_late()
        self._leases.expire()
        self._grant()
