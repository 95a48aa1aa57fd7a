"""The frames of a window: who may write to which, what they hold, and which is given up for something new. Pure.

Each is in exactly one state. What is held is found by its hash, and kept while somebody has it pinned; else it is
given up, the longest unused first, when a frame is needed. Used by actors/kv/connector and actors/kv/leases.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import final

from attrs import define

from protocol.kv import BlockHash


class FrameState(enum.StrEnum):
    """What is with a frame."""

    FREE = "free"
    GRANTED = "granted"
    """The engine may write to it."""
    IMPORTING = "importing"
    """A transport or the disk writes to it."""
    HELD = "held"
    """It has a block."""
    QUARANTINED = "quarantined"
    """Somebody may still write to it who is not to."""


class Pin(enum.Enum):
    """Why a held frame must stay as it is."""

    USE = enum.auto()
    """A find's answer, or the disk's writer reading it."""
    LEASE = enum.auto()


@define(eq=False)
class _Frame:
    state: FrameState = FrameState.FREE
    generation: int = 0
    block_hash: BlockHash | None = None
    uses: int = 0
    leases: int = 0


@final
class Frames:
    """All frames of one window. What is asked of a frame in the wrong state is our bug, and fails."""

    def __init__(self, num_frames: int) -> None:
        self.num_frames = num_frames
        self._frames: list[_Frame] = []
        """Those that have been used: the kernel gives memory to a frame when it is first written."""
        self._free: list[int] = []
        """Of these."""
        self._index: dict[BlockHash, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()
        """Held without a pin, the longest unused first."""
        self._granted: set[int] = set()
        self._states: Counter[FrameState] = Counter({FrameState.FREE: num_frames})
        self.num_exported = 0
        """Pinned by leases."""

    # ------------------------------------------------------------------ to be written

    def grant(self, most: int) -> list[int]:
        """Frames for the engine to write to: fewer if the others are in use."""
        frames = self._take(most, FrameState.GRANTED)
        self._granted |= set(frames)
        return frames

    def take_for_import(self, most: int) -> list[int]:
        """As `grant`, for a transport or the disk."""
        return self._take(most, FrameState.IMPORTING)

    def save(self, frame: int, block_hash: BlockHash) -> None:
        """The engine has written this block to a granted frame. It counts more than what was held under that hash."""
        self._leave_grant(frame)
        self._forget(block_hash)
        self._hold(frame, block_hash)

    def imported(self, frame: int, block_hash: BlockHash) -> int:
        """An importing frame has this block. Returns the frame that holds it: another one, if it had come before."""
        assert self.state(frame) is FrameState.IMPORTING, f"frame {frame} is {self.state(frame)}"
        if (held := self._index.get(block_hash)) is not None:
            self._set_free(frame)
            return held
        self._hold(frame, block_hash)
        return frame

    def give_back(self, frame: int) -> None:
        """A granted frame that was not written, or is not to be believed."""
        self._leave_grant(frame)
        self._set_free(frame)

    def drop(self, frame: int) -> None:
        """An importing frame whose block did not come."""
        assert self.state(frame) is FrameState.IMPORTING, f"frame {frame} is {self.state(frame)}"
        self._set_free(frame)

    def quarantine(self, frame: int) -> None:
        """Who had it to write may still do so."""
        if self.state(frame) is FrameState.GRANTED:
            self._leave_grant(frame)
        else:
            assert self.state(frame) is FrameState.IMPORTING, f"frame {frame} is {self.state(frame)}"
        self._enter(frame, FrameState.QUARANTINED)

    def release(self, frame: int) -> None:
        """Nobody writes any more to one in quarantine."""
        assert self.state(frame) is FrameState.QUARANTINED, f"frame {frame} is {self.state(frame)}"
        self._set_free(frame)

    # ------------------------------------------------------------------ what is held

    def find(self, block_hash: BlockHash) -> int | None:
        """Where this block is; it counts as used now."""
        frame = self._index.get(block_hash)
        if frame is not None and frame in self._unused:
            self._unused.move_to_end(frame)
        return frame

    def peek(self, block_hash: BlockHash) -> int | None:
        """As `find`, of no use."""
        return self._index.get(block_hash)

    def pin(self, frame: int, why: Pin) -> None:
        """As often as it is unpinned."""
        one = self._frames[frame]
        assert one.state is FrameState.HELD, f"frame {frame} is {one.state}"
        self._unused.pop(frame, None)
        if why is Pin.LEASE:
            self.num_exported += not one.leases
            one.leases += 1
        else:
            one.uses += 1

    def unpin(self, frames: Iterable[int], why: Pin) -> None:
        """Of a chain of blocks, in its order: the last ones are the first to be given up."""
        for frame in reversed(list(frames)):
            one = self._frames[frame]
            if why is Pin.LEASE:
                one.leases -= 1
                self.num_exported -= not one.leases
            else:
                one.uses -= 1
            assert one.state is FrameState.HELD, f"frame {frame} is {one.state}"
            assert min(one.uses, one.leases) >= 0, f"frame {frame} is not pinned for this"
            if not one.uses and not one.leases:
                self._settle(frame)

    def forget_all(self) -> None:
        """Nothing is found any more; what is pinned stays as it is until it is not."""
        for block_hash in list(self._index):
            self._forget(block_hash)

    # ------------------------------------------------------------------ questions

    def state(self, frame: int) -> FrameState:
        """FREE for one that there is not."""
        return self._frames[frame].state if 0 <= frame < len(self._frames) else FrameState.FREE

    def generation(self, frame: int) -> int:
        return self._frames[frame].generation

    def block_hash(self, frame: int) -> BlockHash | None:
        """What it holds, also if that is not found any more."""
        return self._frames[frame].block_hash

    @property
    def num_begun(self) -> int:
        """So many of the first frames have been used at some time; no others."""
        return len(self._frames)

    @property
    def granted(self) -> frozenset[int]:
        return frozenset(self._granted)

    @property
    def num_granted(self) -> int:
        return len(self._granted)

    def counts(self) -> dict[str, int]:
        """By state, those that leases pin apart."""
        counts = {str(state): self._states[state] for state in FrameState}
        counts["held"] -= self.num_exported
        counts["exported"] = self.num_exported
        return counts

    # ------------------------------------------------------------------ how

    def _take(self, most: int, state: FrameState) -> list[int]:
        taken: list[int] = []
        while len(taken) < most and (frame := self._next()) is not None:
            self._frames[frame].generation += 1
            self._enter(frame, state)
            taken.append(frame)
        return taken

    def _next(self) -> int | None:
        if self._free:
            return self._free.pop()
        if len(self._frames) < self.num_frames:
            self._frames.append(_Frame())
            return len(self._frames) - 1
        if not self._unused:
            return None
        frame, _ = self._unused.popitem(last=False)
        block_hash = self._frames[frame].block_hash
        assert block_hash is not None
        del self._index[block_hash]
        self._frames[frame].block_hash = None
        return frame

    def _hold(self, frame: int, block_hash: BlockHash) -> None:
        self._frames[frame].block_hash = block_hash
        self._index[block_hash] = frame
        self._enter(frame, FrameState.HELD)
        self._unused[frame] = None

    def _forget(self, block_hash: BlockHash) -> None:
        if (frame := self._index.pop(block_hash, None)) is not None and frame in self._unused:
            del self._unused[frame]
            self._set_free(frame)

    def _settle(self, frame: int) -> None:
        """Nobody has it pinned any more."""
        block_hash = self._frames[frame].block_hash
        if block_hash is not None and self._index.get(block_hash) == frame:
            self._unused[frame] = None
        else:
            self._set_free(frame)

    def _leave_grant(self, frame: int) -> None:
        assert frame in self._granted, f"frame {frame} is {self.state(frame)}"
        self._granted.discard(frame)

    def _set_free(self, frame: int) -> None:
        self._frames[frame].block_hash = None
        self._enter(frame, FrameState.FREE)
        self._free.append(frame)

    def _enter(self, frame: int, state: FrameState) -> None:
        one = self._frames[frame]
        self._states[one.state] -= 1
        self._states[state] += 1
        one.state = state

    def __repr__(self) -> str:
        return f"<Frames {self.counts()}>"
