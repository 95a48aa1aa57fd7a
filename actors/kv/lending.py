"""What connectors owe each other: one lends blocks under a lease, the other copies them and asks afterwards whether
the lease still held. The lending side's state is actors/kv/connector's; who speaks with others is actors/kv/peers.

An owner that reuses a frame does not stop a reader (no transport can), so what was read counts only after `confirm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NewType, Protocol

from attrs import frozen

from actors.kv.window import Window
from protocol.errors import TrillmError
from protocol.kv import BlockHash
from protocol.spec import KvSpec

LeaseId = NewType("LeaseId", str)
"""Random, so that nobody guesses one; new for each export."""


@frozen
class Lent:
    """One block of a lease, as it lies now."""

    block_hash: BlockHash
    frame: int
    generation: int
    """Of the frame: grows whenever it is given to somebody to be written."""


class Lender(Protocol):
    """What exports are here. Synchronous and without I/O; the clock is its own."""

    def borrow(self, lease_id: LeaseId) -> list[Lent] | None:
        """Its blocks, in order; the lease is extended from now on. None if there is no such lease any more."""

    def extend(self, lease_id: LeaseId) -> None:
        """Somebody who has borrowed it is still at it: from now on again, if it is not over."""

    def confirm(self, lease_id: LeaseId, lent: Sequence[Lent]) -> bool:
        """Whether each of these frames has held its block under this lease all the time since `borrow`."""

    def give_back(self, lease_id: LeaseId) -> None:
        """Who has borrowed it has read it, or does not need it: the frames are only cached from now on, unless somebody
        else is still at it. Idempotent."""

    def leave(self, lease_id: LeaseId) -> None:
        """Who has borrowed it is gone without a word, and may come again: it lasts as long as it would have."""


class FetchError(TrillmError):
    """Blocks could not be had from another connector. `kind` is one of protocol.kv.KvCounts.failures."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@frozen
class Fetched:
    """How many of the first blocks lie in the frames that were taken for them."""

    num_blocks: int
    num_bytes: int
    transport: str
    seconds: float


class Peers(Protocol):
    """The connector's side towards others."""

    def ticket(self, lease_id: LeaseId, num_blocks: int, seconds: float) -> bytes:
        """For whoever is to have these blocks: where they are, signed. Valid for `seconds` without being used."""

    async def fetch(
        self,
        ticket: bytes,
        hashes: Sequence[BlockHash],
        take: Callable[[int], list[int]],
        quarantine: Callable[[Sequence[int]], Callable[[], None]],
    ) -> Fetched:
        """Copies the first of these blocks, as many as that lease has of them, and confirms them. `take` gives so many
        frames to be written (fewer if there are no more). To be cancelled at any time.

        However it ends, nothing is written to those frames afterwards but in one case: a transport that cannot be
        stopped has them put into quarantine by `quarantine`, and calls what that gives once it is over. Raises
        FetchError."""


OpenPeers = Callable[[KvSpec, Window, Lender], AbstractAsyncContextManager[Peers]]
"""Serves others from this window, and speaks with them, as long as it is entered: actors.kv.peers.open_peers. A layout
that differs has a window of its own, and so peers of its own; the addresses are free again once this one is left."""
