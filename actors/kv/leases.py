"""What a connector has promised others: blocks that stay in their frames until they were fetched, or a time is over.
Pure; the clock is given. Used by actors/kv/connector, and by the serving side of actors/kv/peers as its Lender.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import final

from attrs import define

from actors.kv.frames import Frames, Pin
from actors.kv.lending import LeaseId, Lent
from protocol.kv import BlockHash


@define(eq=False)
class _Lease:
    blocks: dict[int, Lent]
    """By their frames, in the order of the chain."""
    ends_at: float
    num_borrowers: int = 0
    is_given_back: bool = False
    """By one of them at least."""


def random_lease_id() -> LeaseId:
    return LeaseId(secrets.token_hex(16))


@final
class Leases:
    """Of one window. Fulfils actors.kv.lending.Lender."""

    def __init__(
        self,
        frames: Frames,
        seconds: float,
        clock: Callable[[], float],
        *,
        most_frames: int,
        new_id: Callable[[], LeaseId] = random_lease_id,
    ) -> None:
        """`seconds` is how long a lease lasts, from its beginning and again whenever somebody begins to read. At most
        `most_frames` are pinned, so that the engine is never without frames to write to."""
        self._frames = frames
        self._seconds = seconds
        self._clock = clock
        self._most_frames = most_frames
        self._new_id = new_id
        self._leases: OrderedDict[LeaseId, _Lease] = OrderedDict()
        """The one that ends first in front: each lasts equally long from its last extension."""
        self.num_granted = 0
        self.num_expired = 0

    def __len__(self) -> int:
        """That are held now."""
        return len(self._leases)

    def grant(self, hashes: Sequence[BlockHash]) -> tuple[LeaseId, int] | None:
        """For the first of these blocks, as many as are in memory: their number. None if there are none."""
        blocks: dict[int, Lent] = {}
        for block_hash in hashes:
            frame = self._frames.find(block_hash)
            if frame is None or frame in blocks or self._frames.num_exported >= self._most_frames:
                break
            self._frames.pin(frame, Pin.LEASE)
            blocks[frame] = Lent(block_hash, frame, self._frames.generation(frame))
        if not blocks:
            return None
        lease_id = self._new_id()
        self._leases[lease_id] = _Lease(blocks, self._clock() + self._seconds)
        self.num_granted += 1
        return lease_id, len(blocks)

    # ------------------------------------------------------------------ Lender

    def borrow(self, lease_id: LeaseId) -> list[Lent] | None:
        lease = self._alive(lease_id)
        if lease is None:
            return None
        self.extend(lease_id)
        lease.num_borrowers += 1
        return list(lease.blocks.values())

    def extend(self, lease_id: LeaseId) -> None:
        if (lease := self._alive(lease_id)) is not None:
            lease.ends_at = self._clock() + self._seconds
            self._leases.move_to_end(lease_id)

    def confirm(self, lease_id: LeaseId, lent: Sequence[Lent]) -> bool:
        lease = self._alive(lease_id)
        return lease is not None and all(
            lease.blocks.get(one.frame) == one and self._frames.generation(one.frame) == one.generation for one in lent
        )

    def give_back(self, lease_id: LeaseId) -> None:
        """It ends once nobody reads any more: several may be at it, as with several answers to a prompt."""
        if (lease := self._leases.get(lease_id)) is not None:
            lease.is_given_back = True
            self.leave(lease_id)

    def leave(self, lease_id: LeaseId) -> None:
        if (lease := self._leases.get(lease_id)) is not None:
            lease.num_borrowers -= 1
            if lease.num_borrowers <= 0 and lease.is_given_back:
                self._end(lease_id)

    # ------------------------------------------------------------------ time

    @property
    def next_expiry(self) -> float:
        """inf if there is none to wait for."""
        return next(iter(self._leases.values())).ends_at if self._leases else math.inf

    def expire(self) -> None:
        """End those whose time is over."""
        while self.next_expiry <= self._clock():
            self._alive(next(iter(self._leases)))

    def end_all(self) -> None:
        """The window is let go of."""
        for lease_id in list(self._leases):
            self._end(lease_id)

    def _alive(self, lease_id: LeaseId) -> _Lease | None:
        lease = self._leases.get(lease_id)
        if lease is not None and lease.ends_at <= self._clock():
            self.num_expired += 1
            self._end(lease_id)
            return None
        return lease

    def _end(self, lease_id: LeaseId) -> None:
        self._frames.unpin(self._leases.pop(lease_id).blocks, Pin.LEASE)
