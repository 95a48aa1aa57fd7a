"""What an engine and its KV connector (actors/kv) say to each other about blocks of keys and values.

A block that is full has a name, the hash of its tokens and all before them (actors/engine/block_hashes); its bytes are
the model's own affair and mean the same to every engine with an equal layout. Bytes pass through a window: memory of
the connector that the engine has mapped, in frames of one block each. The engine's runner copies between its pool and
frames, in the order of its steps; the connector fills frames from other connectors and from the disk, and reads them.
So nothing but the engine ever writes to a block, and what arrives late arrives in a frame that nobody uses.

Frames belong to the connector. It grants some to be written (`KvRoom`), and those of a find are the engine's to read
until it says `KvLeave`. Both are over when the engine's process is. Messages carry both epochs: those of any other
incarnation are ignored.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from protocol.ids import Epoch

KV_VERSION = 1
"""Of frames' contents, of what connectors say to each other, and of tickets."""
KV_TRANSPORTS = ("shm", "nixl", "tcp")
"""How blocks come from one connector to another, the best first."""
KV_FAILURES = ("expired", "refused", "unreachable", "timeout", "layout", "broken", "disk")
"""Why blocks could not be had, or not be kept."""
KV_TIERS = ("memory", "disk", "peer")
"""Where blocks are looked for."""

BlockHash = NewType("BlockHash", bytes)
FindId = NewType("FindId", int)
ExportId = NewType("ExportId", int)

PIECE_ALIGNMENT = 64
"""Bytes. Each rank's piece of a frame begins at a multiple of it, and so does each frame."""


class KvLayout(msgspec.Struct, frozen=True):
    """What the bytes of a block are."""

    digest: bytes
    """Of all that has to be equal for them to mean the same: model, weights, types, sizes, ranks, KV_VERSION."""
    block_size: int
    """Tokens."""
    piece_bytes: list[int]
    """Of one block, of each rank, in the order of the ranks."""

    @property
    def piece_offsets(self) -> list[int]:
        """Where in a frame each rank's piece begins."""
        offsets, end = [], 0
        for size in self.piece_bytes:
            offsets.append(end)
            end += aligned(size)
        return offsets

    @property
    def frame_bytes(self) -> int:
        return sum(map(aligned, self.piece_bytes))


def aligned(size: int) -> int:
    return -(-size // PIECE_ALIGNMENT) * PIECE_ALIGNMENT


class KvWindow(msgspec.Struct, frozen=True):
    """A connector's memory: `num_frames` frames one after the other, in a file without a name."""

    path: str
    """/proc/PID/fd/N: who has mapped it keeps it, also beyond the connector's end."""
    num_frames: int
    layout: KvLayout


class KvParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one request: where its KV comes from and what becomes of it."""

    ticket: bytes = b""
    """The KV of the prompt's beginning lies with another connector, which gave this ticket."""
    exports: bool = False
    """When it ends by a stop or its length, the KV of its full blocks is kept for others, and the last output has a
    ticket for it."""
    hands_over: bool = False
    """It does not go on after its first token, whose output has a ticket, but is continued elsewhere: the engine
    forgets it without an end. Should that token end it, it ends as ever. Without a connector, which could give a
    ticket, the engine goes on with it until there is one, or until others wait for its place."""
    must_load: bool = False
    """With a ticket: to fail, instead of computing what could not be had."""


# ------------------------------------------------------------------ engine -> connector


class KvFind(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_FIND"):
    """Which of the first of these blocks can be had? Answered by one KvFound, unless KvLeave comes first."""

    epoch: Epoch
    find_id: FindId
    hashes: list[BlockHash]
    """Of consecutive blocks."""
    ticket: bytes = b""
    """Where they lie, if not here."""
    seconds: float = 0.0
    """How long the request waits for the answer."""


class KvLeave(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_LEAVE"):
    """Nobody needs what was or is to be found: it was loaded, or the request is gone. Idempotent."""

    epoch: Epoch
    find_ids: list[FindId]


class KvDecline(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_DECLINE"):
    """Nobody needs what this ticket promises: the engine has it already, or it is one of its own, and nobody brings it.
    Whoever gave it need not keep it any longer."""

    epoch: Epoch
    ticket: bytes


class KvSaved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_SAVED"):
    """These granted frames hold these blocks; those without a hash were not written, and are given back."""

    epoch: Epoch
    frames: list[int]
    hashes: list[BlockHash | None]


class KvUsed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_USED"):
    """These blocks, a chain from its beginning, were of use until now, most of them without any find: none of them is
    worth keeping without those before it."""

    epoch: Epoch
    hashes: list[BlockHash]


class KvExport(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_EXPORT"):
    """Keep these blocks, which were saved before, for whoever brings the ticket. Answered by one KvExported."""

    epoch: Epoch
    export_id: ExportId
    hashes: list[BlockHash]


class KvReset(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_RESET"):
    """Forget every block that nobody uses now, on the disk too. Answered by KvResetDone."""

    epoch: Epoch
    call_id: int


KvInput = KvFind | KvLeave | KvSaved | KvExport | KvReset | KvDecline | KvUsed


# ------------------------------------------------------------------ connector -> engine


class KvRoom(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_ROOM"):
    """The engine may write to these frames, each once: it answers with KvSaved."""

    epoch: Epoch
    kv_epoch: Epoch
    frames: list[int]


class KvFound(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_FOUND"):
    """The first blocks of a find lie in these frames, whole and confirmed."""

    epoch: Epoch
    kv_epoch: Epoch
    find_id: FindId
    frames: list[int]
    error: str | None = None
    """Why a ticket gave fewer blocks than it promised."""


class KvExported(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_EXPORTED"):
    epoch: Epoch
    kv_epoch: Epoch
    export_id: ExportId
    ticket: bytes
    """Empty if none of the blocks could be kept."""
    num_blocks: int = 0
    """That the ticket promises."""


class KvResetDone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_RESET_DONE"):
    epoch: Epoch
    kv_epoch: Epoch
    call_id: int


class KvCounts(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="KV_COUNTS"):
    """How the connector is, about once a second. Counters are totals since kv_epoch began."""

    epoch: Epoch
    kv_epoch: Epoch
    frames: dict[str, int] = {}
    """By state (actors/kv/frames)."""
    disk_blocks: int = 0
    disk_bytes: int = 0
    leases: int = 0
    """That are held for others now."""
    queried_blocks: dict[str, int] = {}
    """By where they were looked for (KV_TIERS); and below, those that were found there."""
    found_blocks: dict[str, int] = {}
    saved_blocks: int = 0
    transfers: dict[str, int] = {}
    """By transport: from other connectors, to this one; with their bytes and seconds."""
    transfer_bytes: dict[str, int] = {}
    transfer_seconds: dict[str, float] = {}
    failures: dict[str, int] = {}
    """By kind (KV_FAILURES)."""
    leases_granted: int = 0
    leases_expired: int = 0


KvOutput = KvRoom | KvFound | KvExported | KvResetDone | KvCounts
