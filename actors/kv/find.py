"""One thing that the engine looks for: what of it is pinned, and what it waits for. Pure; used by actors/kv/finds."""

from __future__ import annotations

from attrs import define, field

from protocol.kv import BlockHash, FindId, KvFind

SHARE_OF_TIME = 0.9
"""Of that which the engine waits: an answer is to be there before."""


@define(eq=False)
class Find:
    """One KvFind, until it is left."""

    find_id: FindId
    hashes: list[BlockHash]
    ticket: bytes
    ends_at: float
    places: dict[BlockHash, int]
    """Of each block, where in `hashes` it is."""
    frames: dict[int, int] = field(factory=dict)
    """Of the blocks that are here, by their places: pinned for it."""
    waiting: set[BlockHash] = field(factory=set)
    """Blocks that are on their way."""
    in_vain: set[BlockHash] = field(factory=set)
    """Blocks that the disk could not give."""
    has_asked_peer: bool = False
    has_asked_disk: bool = False
    fetching: list[BlockHash] = field(factory=list)
    """What its peer is asked for just now."""
    is_answered: bool = False
    error: str | None = None

    @classmethod
    def of(cls, message: KvFind, now: float) -> Find:
        places = {block_hash: place for place, block_hash in enumerate(message.hashes)}
        return cls(message.find_id, message.hashes, message.ticket, now + message.seconds * SHARE_OF_TIME, places)

    @property
    def may_ask_peer(self) -> bool:
        return bool(self.ticket) and not self.has_asked_peer

    @property
    def has_ticket(self) -> bool:
        """That is of use to it yet: fetching gives it back once it is done."""
        return not self.is_answered and (self.may_ask_peer or bool(self.fetching))

    def chain(self) -> list[int]:
        """The frames of its first blocks, up to one that is not here."""
        chain: list[int] = []
        while (frame := self.frames.get(len(chain))) is not None:
            chain.append(frame)
        return chain
