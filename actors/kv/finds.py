"""What the engine looks for: each find, what of it is pinned, and what it waits for. Pure but for the clock, which is
given. Used by actors/kv/connector.

Of a find's blocks those in memory are pinned at once. What is missing comes from the peer that gave the ticket, or else
from the disk; whoever else waits for the same block waits with it. At the latest when its time is over there is an
answer, with what is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import final

from actors.kv.complaints import Complaints
from actors.kv.counters import Counters
from actors.kv.find import Find
from actors.kv.frames import Frames, Pin
from actors.kv.lending import Fetched, FetchError
from actors.kv.sources import Blocks, Fetches
from protocol.kv import BlockHash, FindId, KvFind

Answer = Callable[[FindId, list[int], str | None], None]
"""Says which frames have the first blocks, and why a ticket gave fewer than it promised."""


@final
class Finds:
    """Of one window, whichever engine it is for. Fulfils actors.kv.disk_desk.ReadDesk, actors.kv.fetching.FetchDesk."""

    def __init__(
        self,
        frames: Frames,
        disk: Blocks,
        fetches: Fetches,
        counters: Counters,
        say: Answer,
        clock: Callable[[], float],
    ) -> None:
        self._frames = frames
        self._disk = disk
        self._fetches = fetches
        self._counters = counters
        self._say = say
        self._clock = clock
        self._complaints = Complaints(clock)
        self._finds: dict[FindId, Find] = {}
        self._coming: dict[BlockHash, set[FindId]] = {}
        """Blocks on their way to memory, and whose finds wait for them."""
        self._is_leaving = False
        self._num_resets = 0
        self._reading: dict[BlockHash, int] = {}
        """Blocks that the disk reads just now, and how many resets there had been before: what was to be forgotten
        meanwhile is."""

    def look_for(self, message: KvFind) -> None:
        """Sooner or later there is an answer, but for what is left before."""
        if message.find_id in self._finds:
            return
        find = self._finds[message.find_id] = Find.of(message, self._clock())
        self._look(find)
        self._counters.looked("memory", len(find.hashes), len(find.frames))
        for place in reversed(find.frames):  # as in memory, the last ones are to be given up first
            self._disk.touch(find.hashes[place])

    def leave(self, find_id: FindId) -> None:
        """Nobody waits for it, or reads what was found. Idempotent."""
        if (find := self._finds.get(find_id)) is not None:
            has_ticket = find.has_ticket
            self._leave(find)
            if has_ticket:
                self.decline(find.ticket)

    def decline(self, ticket: bytes) -> None:
        """Who had it needs it no more; unless others have the same, as several answers to a prompt do."""
        if not any(find.has_ticket and find.ticket == ticket for find in self._finds.values()):
            self._fetches.decline(ticket)

    def leave_all(self) -> None:
        """Their engine is gone."""
        self._is_leaving = True
        for find in list(self._finds.values()):
            self._leave(find)
        self._is_leaving = False

    def forget_arriving(self) -> None:
        """What is being read from the disk just now is to be forgotten too."""
        self._num_resets += 1

    # ------------------------------------------------------------------ time

    @property
    def next_deadline(self) -> float:
        """When `answer_late` is due; inf if nothing waits."""
        return min((find.ends_at for find in self._finds.values() if not find.is_answered), default=math.inf)

    def answer_late(self) -> None:
        """Those whose time is over, with what is here."""
        now = self._clock()
        for find in list(self._finds.values()):
            if not find.is_answered and find.ends_at <= now:
                if find.fetching:
                    self._failed(find, "timeout", "the blocks of the ticket did not come in time")
                self._answer(find)

    # ------------------------------------------------------------------ one find

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
            elif self._is_on_disk(find, block_hash):
                self._wait_for(find, block_hash)
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

    def _is_on_disk(self, find: Find, block_hash: BlockHash) -> bool:
        if not find.has_asked_disk and self._disk.is_used:
            find.has_asked_disk = True
            self._counters.looked("disk", len(find.hashes) - len(find.frames))
        return block_hash not in find.in_vain and self._disk.has(block_hash)

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
        if not (self._is_leaving or find.is_answered or find.waiting or find.fetching):
            self._look(find)

    def _answer(self, find: Find) -> None:
        """With the blocks that are here, up to the first one that is not."""
        had_ticket, find.is_answered = find.has_ticket, True
        self._stop_waiting(find)
        chain = find.chain()
        is_whole = len(chain) == len(find.hashes)
        error = None if is_whole else find.error
        if had_ticket:
            self.decline(find.ticket)
        beyond = [frame for place, frame in sorted(find.frames.items()) if place >= len(chain)]
        self._frames.unpin(beyond, Pin.USE)
        find.frames = dict(enumerate(chain))
        if not chain:
            del self._finds[find.find_id]
        self._say(find.find_id, chain, error)

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

    # ------------------------------------------------------------------ FetchDesk

    def end_fetch(self, find_id: FindId, frames: Sequence[int], fetched: Fetched, *, lacked_room: bool) -> None:
        """The first of what was asked for is in these importing frames, whole and confirmed."""
        self._counters.fetched(fetched)
        find = self._finds[find_id]
        hashes, find.fetching = find.fetching, []
        if lacked_room:
            find.error = f"there was room for only {fetched.num_blocks} blocks of the ticket"
        # All are pinned before anybody looks for more, which may need room.
        held = [self._frames.imported(frame, block_hash) for block_hash, frame in zip(hashes, frames, strict=False)]
        for frame in held:
            self._frames.pin(frame, Pin.USE)
        for block_hash, frame in zip(hashes, held, strict=False):
            self._came(block_hash, frame)
            self._disk.offer(block_hash)
        self._fetch_is_over(hashes[len(held) :])
        self._go_on(find)
        self._frames.unpin(held, Pin.USE)

    def fail_fetch(self, find_id: FindId, error: FetchError) -> None:
        """Nothing of it is to be believed."""
        find = self._finds[find_id]
        hashes, find.fetching = find.fetching, []
        self._failed(find, error.kind, str(error))
        self._fetch_is_over(hashes)
        self._go_on(find)

    def _failed(self, find: Find, kind: str, sentence: str) -> None:
        find.error = sentence
        self._counters.failures[kind] += 1
        self._complaints.failed(kind, sentence)

    def _fetch_is_over(self, hashes: Iterable[BlockHash]) -> None:
        """These have not come by it."""
        for block_hash in hashes:
            self._came(block_hash, None)

    # ------------------------------------------------------------------ ReadDesk

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

    def _is_in_vain(self, block_hash: BlockHash) -> None:
        for find_id in self._coming.get(block_hash, ()):
            self._finds[find_id].in_vain.add(block_hash)
        self._came(block_hash, None)
