"""What the connector was asked to find for the sequences that wait, and what came of it. Pure; used by
actors/engine/kv_side.

A sequence whose chain of full blocks goes on beyond what the pool has is asked for once, when it comes near to being
admitted, and is passed over until that is settled: found, not found, or not answered in time. Once admitted, its blocks
are loaded, by one plan or several. What was found stays pinned there until these are committed, or the sequence is gone
and no plan in flight reads it any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import final

import attrs

from actors.engine.sequence import Sequence, SequenceStatus
from protocol.ids import Epoch
from protocol.kv import BlockHash, FindId, KvDecline, KvFind, KvFound, KvInput, KvLeave

GRACE_SECONDS = 0.5
"""The connector answers in time with what it has by then; who hears nothing so much later goes on without."""

_NOTHING: list[int] = []


@attrs.define(eq=False)
class Find:
    """Of one sequence."""

    sequence: Sequence
    first: int = 0
    """The block that the first of `hashes` is of."""
    hashes: list[BlockHash] = attrs.field(factory=list)
    number: FindId | None = None
    """None: nothing was asked, or it is left already."""
    deadline: float = math.inf
    is_settled: bool = True
    frames: list[int] = _NOTHING
    """Of the first of these blocks; once it is admitted, of those that no plan loads yet."""
    num_plans: int = 0
    """Not committed, that load some of them."""


@final
class KvFinds:
    """Settled at once, with nothing found, for as long as there is no connector."""

    def __init__(self, epoch: Epoch, seconds: float, say: Callable[[KvInput], None]) -> None:
        """`seconds`: how long a sequence waits for an answer."""
        self._epoch = epoch
        self._seconds = seconds
        self._say = say
        self._of: dict[Sequence, Find] = {}
        self._loading: dict[Sequence, Find] = {}
        """They are admitted, and the runner hears of them with the last of their blocks."""
        self._torn: set[Sequence] = set()
        """They have been asked for a second time."""
        self._pending: dict[FindId, Find] = {}
        """Not answered yet, in the order of their deadlines."""
        self._num_asked = 0
        self.num_queried_tokens = 0
        """Of prompts that were asked for the first time, and those of them that were loaded."""
        self.num_found_tokens = 0

    @property
    def next_deadline(self) -> float:
        return next(iter(self._pending.values())).deadline if self._pending else math.inf

    def of(self, sequence: Sequence) -> Find | None:
        """None before anything has been decided about it."""
        return self._of.get(sequence)

    def settle(self, sequence: Sequence) -> Find:
        """There is nothing to ask for it."""
        find = self._of[sequence] = Find(sequence)
        return find

    def decline(self, sequence: Sequence) -> Find:
        """There is nothing that it lacks, and so its ticket is of no use."""
        kv = sequence.request.kv
        if kv is not None and kv.ticket and sequence.status is SequenceStatus.WAITING:
            self._say(KvDecline(self._epoch, kv.ticket))
        return self.settle(sequence)

    def ask(self, sequence: Sequence, first: int, hashes: list[BlockHash], block_size: int, now: float) -> Find:
        """Its blocks from `first` on have these hashes."""
        self._num_asked += 1
        number = FindId(self._num_asked)
        find = Find(sequence, first, hashes, number, now + self._seconds + GRACE_SECONDS, is_settled=False)
        self._of[sequence] = self._pending[number] = find
        kv = sequence.request.kv
        is_new = sequence.status is SequenceStatus.WAITING
        if is_new and sequence not in self._torn:
            self.num_queried_tokens += len(hashes) * block_size
        # A preempted one has used its ticket: what that promised lies with our own connector.
        ticket = kv.ticket if kv is not None and is_new else b""
        self._say(KvFind(self._epoch, number, hashes, ticket, self._seconds))
        return find

    def hear(self, found: KvFound) -> Find | None:
        """The find that is settled by it; None if nobody waits for it any more."""
        find = self._pending.pop(found.find_id, None)
        if find is None:
            return None
        find.is_settled = True
        find.frames = found.frames[: len(find.hashes)]
        if not find.frames:
            self._leave([find])
        return find

    def passed(self, now: float) -> list[Find]:
        """Those that were not answered by their deadlines; they are settled, and left."""
        late: list[Find] = []
        for find in self._pending.values():
            if find.deadline > now:
                break
            late.append(find)
        for find in late:
            find.is_settled = True
        self._leave(late)
        return late

    def is_torn(self, sequence: Sequence, num_in_pool: int) -> bool:
        """What the pool had before the blocks that were found has been evicted since: so they are of no use, and are
        asked for once more with those before them."""
        find = self._of.get(sequence)
        if find is None or not find.frames or num_in_pool >= find.first:
            return False
        self._leave([find])
        find.frames = _NOTHING
        if sequence in self._torn:
            return False
        self._torn.add(sequence)
        del self._of[sequence]
        return True

    def start(self, sequence: Sequence, num_in_pool: int) -> int:
        """It is admitted with so many blocks of the pool, and is not torn. How many behind them are to be loaded."""
        self._torn.discard(sequence)
        find = self._of.pop(sequence, None)
        if find is None:
            return 0
        find.frames = find.frames[num_in_pool - find.first :] if find.frames else _NOTHING
        if find.frames:
            self._loading[sequence] = find
        else:
            self._leave([find])
        return len(find.frames)

    @property
    def loading(self) -> list[Sequence]:
        """Those that run as soon as all their blocks are loaded, in the order in which they were admitted."""
        return list(self._loading)

    @property
    def num_loading(self) -> int:
        return len(self._loading)

    def is_loading(self, sequence: Sequence) -> bool:
        return sequence in self._loading

    def take(self, sequence: Sequence, most: int) -> tuple[Find, list[int]]:
        """The frames of its next blocks, for a plan that is being made: `loaded` is to hear when that is committed."""
        find = self._loading[sequence]
        frames, find.frames = find.frames[:most], find.frames[most:]
        find.num_plans += 1
        if not find.frames:
            del self._loading[sequence]
        return find, frames

    def loaded(self, finds: Iterable[Find]) -> None:
        """A plan that loads from these is committed."""
        over: list[Find] = []
        for find in finds:
            find.num_plans -= 1
            if not find.num_plans and not find.frames:
                over.append(find)
        self._leave(over)

    def stop(self, sequence: Sequence) -> bool:
        """It runs no more. Whether its blocks were still being loaded."""
        find = self._loading.pop(sequence, None)
        if find is None:
            return False
        find.frames = _NOTHING
        if not find.num_plans:
            self._leave([find])
        return True

    def drop(self, sequence: Sequence) -> None:
        """It waits no longer, and does not start."""
        self._torn.discard(sequence)
        if (find := self._of.pop(sequence, None)) is not None:
            self._leave([find])

    def drop_all(self) -> None:
        """All that wait are asked for anew. Nothing is being loaded."""
        self._leave(self._of.values())
        self.forget()

    def forget(self) -> None:
        """The same, and there is nobody to be told."""
        self._of.clear()
        self._loading.clear()
        self._torn.clear()
        self._pending.clear()

    def _leave(self, finds: Iterable[Find]) -> None:
        numbers: list[FindId] = []
        for find in finds:
            if find.number is not None:
                self._pending.pop(find.number, None)
                numbers.append(find.number)
                find.number = None
        if numbers:
            self._say(KvLeave(self._epoch, numbers))

    def __repr__(self) -> str:
        return f"<KvFinds {len(self._pending)} not answered, of {len(self._of)} sequences>"
