"""The engine's side of its KV connector (protocol/kv.py): what the scheduler asks, saves, loads and exports. Pure;
actors/engine/kv_link.py carries what is said.

All of it is a cache: without a connector nothing is found, nothing saved, and there are no tickets. What cannot be had
in time is computed. A connector that lets a deadline pass is not asked again before it says something.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import final

from actors.engine.blocks import BlockPool
from actors.engine.finish import Finish
from actors.engine.kv_exports import Export, KvExports
from actors.engine.kv_finds import Find, KvFinds
from actors.engine.kv_saves import MOST_PER_PLAN, KvSaves, Save
from actors.engine.sequence import Sequence, SequenceStatus
from protocol.ids import Epoch
from protocol.kv import BlockHash, KvCounts, KvExported, KvFound, KvInput, KvReset, KvSaved, KvUsed

MOST_SHUNNED = 4096
"""Blocks that are remembered as not to be loaded."""


@final
class KvSide:
    """Of one engine's incarnation, over all connectors that it has."""

    def __init__(self, epoch: Epoch, pool: BlockPool, seconds: float) -> None:
        """`seconds`: how long a sequence waits for an answer."""
        self.epoch = epoch
        self._pool = pool
        self._outbox: list[KvInput] = []
        self._num_frames = 0
        self._saves: KvSaves | None = None
        self._expected_until: float | None = None
        self._is_silent = False
        self._shunned: OrderedDict[BlockHash, None] = OrderedDict()
        """What lies there under these broke a step, or may have."""
        self._num_resets = 0
        self._num_resets_done = 0
        self._num_connections = 0
        self.finds = KvFinds(epoch, seconds, self._outbox.append)
        self.exports = KvExports(epoch, seconds, self._outbox.append)
        self.is_used = False
        """This engine has a connector, be it there or not."""
        self.kv_epoch: Epoch | None = None
        """Of the connector that is there."""
        self.counts: KvCounts | None = None
        """What it has said last of itself."""

    # ------------------------------------------------------------------ coming and going

    @property
    def is_up(self) -> bool:
        return self._saves is not None

    @property
    def connection(self) -> int:
        """Which one: plans of earlier ones have nothing to do with it."""
        return self._num_connections

    def expect(self, until: float) -> None:
        """A connector will be there soon: sequences wait for it until this moment, in seconds of CLOCK_MONOTONIC."""
        self.is_used = True
        self._expected_until = until

    def connect(self, kv_epoch: Epoch, num_frames: int) -> None:
        """A connector is there, and the runner has its frames attached behind all plans until now. What waits is asked
        for, and what the pool has is saved."""
        assert self._saves is None, "a connector comes while there is one"
        self.is_used = True
        self._num_connections += 1
        self._expected_until = None
        self._is_silent = False
        self.kv_epoch = kv_epoch
        self._num_frames = num_frames
        self._saves = KvSaves(self._pool, num_frames)
        self.finds.forget()
        if not self.is_reset(self._num_resets):  # of the one before it, or of none: what is on the disk is the same
            self._outbox.append(KvReset(self.epoch, self._num_resets))

    def disconnect(self) -> list[Export]:
        """The connector is gone, or none comes. Returns what waited for tickets; nothing more is copied to or from its
        frames."""
        self._num_connections += 1
        self._expected_until = None
        self.kv_epoch = self._saves = self.counts = None
        self._outbox.clear()
        self.finds.forget()
        return self.exports.drop_all()

    def take_messages(self) -> list[KvInput]:
        """What is to be said to the connector since the last call, in this order."""
        messages = list(self._outbox)
        self._outbox.clear()
        return messages

    def heard(self) -> None:
        """The connector said something."""
        self._is_silent = False

    # ------------------------------------------------------------------ finding

    @property
    def is_expected(self) -> bool:
        return self._expected_until is not None

    def is_settled(self, sequence: Sequence) -> bool:
        """Whether it may start, with or without blocks from there."""
        if self._saves is None and self._expected_until is None:
            return True
        find = self.finds.of(sequence)
        return find is not None and find.is_settled

    def look_for(self, sequence: Sequence, chain: list[BlockHash], now: float) -> Find:
        """Ask for what comes behind the pool's blocks of this chain, if that is worth while.

        A preempted sequence is asked for again only if its next block was saved: then the way there and back costs
        less than computing. All that it had computed was to be saved, so that what was not is not there.
        """
        if (find := self.finds.of(sequence)) is not None:
            return find
        first = len(self._pool.find(chain))
        hashes = chain[first:]
        shunned = next((index for index, one in enumerate(hashes) if one in self._shunned), None)
        hashes = hashes[:shunned]
        if self._saves is None or (self._is_silent and not must_load(sequence)):
            return self.finds.settle(sequence)
        if not hashes:
            return self.finds.decline(sequence)
        if sequence.status is SequenceStatus.PREEMPTED and not self._saves.has(hashes[0]):
            return self.finds.settle(sequence)
        return self.finds.ask(sequence, first, hashes, self._pool.block_size, now)

    def hear_found(self, found: KvFound) -> Find | None:
        """The find that is settled by it."""
        assert self._saves is not None
        frames = found.frames
        if any(not 0 <= frame < self._num_frames for frame in frames):
            frames = []
        find = self.finds.hear(KvFound(found.epoch, found.kv_epoch, found.find_id, frames, found.error))
        if find is not None:
            for block_hash in find.hashes[: len(find.frames)]:
                self._saves.learn(block_hash)
            self._saves.unlearn(find.hashes[len(find.frames) :])
        return find

    def drop(self, sequence: Sequence) -> None:
        """It waits no longer, and does not start. Who has been asked for it gives its ticket back himself."""
        if self._saves is not None and self.finds.of(sequence) is None:
            self.finds.decline(sequence)
        self.finds.drop(sequence)

    def passed_finds(self, now: float) -> list[Find]:
        """Those that were not answered in time."""
        late = self.finds.passed(now)
        self._is_silent = self._is_silent or bool(late)
        return late

    # ------------------------------------------------------------------ saving

    @property
    def has_saves(self) -> bool:
        """A plan could save something."""
        return self._saves is not None and self._saves.is_due

    def grant(self, frames: Iterable[int]) -> None:
        """The connector lets us write to these."""
        if self._saves is not None:
            self._saves.grant(frames)

    def note_published(self, block_hash: BlockHash) -> None:
        if self._saves is not None:
            self._saves.note(block_hash)

    def note_used(self, sequence: Sequence) -> None:
        """It is over: what it had is kept there as it is here, the last blocks being given up first."""
        if self._saves is not None and sequence.block_hashes is not None and sequence.num_published_blocks:
            self._outbox.append(KvUsed(self.epoch, sequence.block_hashes.first(sequence.num_published_blocks)))

    def take_saves(self) -> list[Save]:
        """For the plan that is being made, before it takes any block: all that somebody waits for, and some more."""
        if self._saves is None or not self._saves.is_due:
            return []
        if self.exports.is_saving:
            self.exports.hurry(self._saves)
            return self._saves.take(max(MOST_PER_PLAN, self.exports.num_lacking))
        return self._saves.take(MOST_PER_PLAN)

    def put_back(self, saves: list[Save]) -> None:
        """There is no such plan after all."""
        if self._saves is not None:
            self._saves.put_back(saves)

    def committed(self, saves: list[Save], loading: list[Find]) -> None:
        """A plan of this connection is done: its saves, and its loads from these."""
        assert self._saves is not None
        if saves:
            frames, hashes = self._saves.commit(saves)
            for block_hash in hashes:
                if block_hash is not None:
                    self._shunned.pop(block_hash, None)
            self._outbox.append(KvSaved(self.epoch, frames, hashes))
        self.finds.loaded(loading)

    def retract(self, hashes: Iterable[BlockHash]) -> None:
        """A row broke that was computed from these blocks: they are not loaded again until they are saved anew."""
        hashes = list(hashes)
        if self._saves is not None:
            self._saves.retract(hashes)
            for block_hash in hashes:
                self._shunned[block_hash] = None
            while len(self._shunned) > MOST_SHUNNED:
                self._shunned.popitem(last=False)

    # ------------------------------------------------------------------ exporting

    @property
    def gives_tickets(self) -> bool:
        """There is a connector to ask for them, and it answers."""
        return self._saves is not None and not self._is_silent

    def export(self, sequence: Sequence, finish: Finish | None, offset: int) -> bool:
        """Have a ticket made for its full blocks. False: there is none to be had."""
        if not self.gives_tickets or sequence.block_hashes is None:
            return False
        # Published blocks count, whoever has them now: also if it was preempted while its last token was on its way.
        num_tokens = min(max(sequence.num_computed_tokens, sequence.num_tokens - 1), sequence.num_tokens)
        hashes = sequence.block_hashes.up_to(sequence.token_ids, num_tokens)
        if hashes:
            self.exports.begin(Export(sequence, finish, offset, hashes))
        return bool(hashes)

    def give_back(self, sequence: Sequence) -> None:
        """Nobody takes its ticket, if it has one: what it was told last did not come to anybody."""
        ticket, sequence.kv_ticket = sequence.kv_ticket, None
        if self._saves is not None and ticket:
            self.exports.give_back(ticket)

    def advance_exports(self, now: float) -> list[Export]:
        """Those that are over without a ticket."""
        if self._saves is None or not self.exports:
            return []
        hopeless, late = self.exports.advance(self._saves, now), self.exports.passed(now)
        self._is_silent = self._is_silent or bool(late)
        return hopeless + late

    def hear_exported(self, exported: KvExported) -> Export | None:
        return None if self._saves is None else self.exports.hear(exported, self._saves)

    # ------------------------------------------------------------------ forgetting

    def reset(self, *, external: bool) -> None:
        """The pool has forgotten all. With `external`, the connector is to do so too: if there is none just now, the
        next one."""
        self.finds.drop_all()
        if external and self.is_used:
            self._num_resets += 1
            if self._saves is not None:
                self._saves.reset()
                self._outbox.append(KvReset(self.epoch, self._num_resets))

    @property
    def num_resets(self) -> int:
        """That the connectors were asked for."""
        return self._num_resets

    def hear_reset(self, number: int) -> None:
        self._num_resets_done = max(self._num_resets_done, number)

    def is_reset(self, number: int) -> bool:
        """Whether the connector has done what it was asked for then."""
        return self._num_resets_done >= number

    # ------------------------------------------------------------------ waiting

    @property
    def next_deadline(self) -> float:
        """When the scheduler has to look at it again at the latest; inf if nothing waits."""
        expected = math.inf if self._expected_until is None else self._expected_until
        return min(expected, self.finds.next_deadline, self.exports.next_deadline)

    def give_up_expecting(self, now: float) -> bool:
        """Whether the connector should have come by now, and has not."""
        return self._expected_until is not None and now >= self._expected_until

    def __repr__(self) -> str:
        return f"<KvSide {self.kv_epoch}: {self._saves!r}, {self.finds!r}, {self.exports!r}>"


def must_load(sequence: Sequence) -> bool:
    """Its request fails if what its ticket promises cannot be had."""
    kv = sequence.request.kv
    return kv is not None and kv.must_load and bool(kv.ticket) and sequence.status is SequenceStatus.WAITING
