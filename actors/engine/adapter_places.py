"""Which adapters the runner has, and which make room for others: as many as there are places. Pure; the scheduler asks
it who may start, and actors/engine/adapter_loader.py does what it decides.

An adapter is brought in when a request waits for it, in the place of the one that was used longest ago, if nobody runs
with it, waits for it further in front, or has pinned it. If there is none, then one is chosen, and nobody who waits
behind that request starts with it any more: so its place becomes free when those who run have finished. All others go
on meanwhile, and start before the one that waits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from actors.engine.sequence import Sequence
from protocol.errors import ConflictError
from protocol.lora import NO_LORA, LoraId, LoraRequest
from protocol.operations import LoraState


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """What the runner is to give up, and then to have."""

    leaving: LoraId | None
    coming: LoraRequest | None


@final
class AdapterPlaces:
    """Places for `num_places` adapters; with none there is nothing to decide."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._ready: OrderedDict[LoraId, None] = OrderedDict()
        """What the runner has and keeps, the one that was used longest ago first."""
        self._coming: set[LoraId] = set()
        """They have their places already."""
        self._num_running: Counter[LoraId] = Counter()
        self._pinned: set[LoraId] = set()
        self._unwanted: set[LoraId] = set()
        """To be given up once nobody has a use for them."""
        self._first_without: Sequence | None = None
        self._closed: LoraId | None = None
        """Whoever waits behind the first that lacks a place does not start with this one."""

    # -------------------------------------------------------------------------------- who may start

    def is_ready(self, lora_id: LoraId) -> bool:
        return lora_id == NO_LORA or lora_id in self._ready

    def first_ready(self, waiting: Iterable[Sequence], is_settled: Callable[[Sequence], bool]) -> Sequence | None:
        """The first of these, the best rank first, that may start; those that lack their adapter are passed over, and
        so are those that are not settled otherwise."""
        closed: LoraId | None = None
        for sequence in waiting:
            if self.is_ready(sequence.lora_id) and sequence.lora_id != closed and is_settled(sequence):
                return sequence
            if sequence is self._first_without:
                closed = self._closed
        return None

    def start(self, lora_id: LoraId) -> None:
        """A sequence begins to run with it."""
        if lora_id != NO_LORA:
            assert lora_id in self._ready, f"adapter {lora_id} is not there to run with"
            self._num_running[lora_id] += 1
            self._ready.move_to_end(lora_id)

    def stop(self, lora_id: LoraId) -> None:
        """A sequence runs with it no more."""
        if lora_id != NO_LORA:
            assert self._num_running[lora_id] > 0, f"nobody runs with adapter {lora_id}"
            self._num_running[lora_id] -= 1
            if not self._num_running[lora_id]:
                del self._num_running[lora_id]
            self._ready.move_to_end(lora_id)

    # -------------------------------------------------------------------------------- who comes and goes

    def review(self, waiting: Iterable[Sequence], held: Iterable[Sequence] = ()) -> list[AdapterChange]:
        """What is to change for the sake of those that wait, the best rank first. What leaves is not ready from now
        on, and what comes has its place. Of those that are `held` nobody starts for now: nothing comes for them, and
        nothing that is unwanted leaves before they have had it."""
        changes: list[AdapterChange] = []
        in_front: set[LoraId] = set()
        was_closed, self._first_without, self._closed = self._closed, None, None
        for sequence in waiting:
            lora = sequence.request.lora
            if lora is None:
                continue
            if lora.lora_id not in self._ready and lora.lora_id not in self._coming and self._first_without is None:
                leaving = self._idle(in_front) if self._num_taken >= self.num_places else None
                if leaving is None and self._num_taken >= self.num_places:
                    self._first_without = sequence
                    self._closed = self._one_to_close(was_closed, in_front)
                else:
                    self._give_up(leaving)
                    self._coming.add(lora.lora_id)
                    changes.append(AdapterChange(leaving, lora))
            in_front.add(lora.lora_id)
        if self._unwanted:
            in_front.update(sequence.lora_id for sequence in held)
        for lora_id in sorted(self._unwanted - in_front - self._num_running.keys()):
            if lora_id in self._ready:
                self._give_up(lora_id)
                changes.append(AdapterChange(lora_id, None))
            elif lora_id not in self._coming:
                self._unwanted.discard(lora_id)
        return changes

    def reserve(self, lora: LoraRequest) -> bool:
        """Take a place for it, if one is free and it has none: then it is coming. It is wanted in any case."""
        self._unwanted.discard(lora.lora_id)
        if self._num_taken >= self.num_places or lora.lora_id in self._ready or lora.lora_id in self._coming:
            return False
        self._coming.add(lora.lora_id)
        return True

    def arrive(self, lora_id: LoraId) -> None:
        """What was coming is there."""
        self._coming.remove(lora_id)
        self._ready[lora_id] = None

    def fail(self, lora_id: LoraId) -> None:
        """What was coming does not come."""
        self._coming.remove(lora_id)
        self._unwanted.discard(lora_id)

    # -------------------------------------------------------------------------------- what operators ask for

    def discard(self, lora_id: LoraId) -> None:
        """Nobody will ask for it again: it leaves as soon as those that have asked are done, also if it has to come for
        them first."""
        self._pinned.discard(lora_id)
        self._unwanted.add(lora_id)

    def pin(self, lora_id: LoraId) -> None:
        """Keep it. Raises ConflictError for one that is not there, and for the one that would leave no place for
        others."""
        if lora_id not in self._ready or lora_id in self._unwanted:
            raise ConflictError(f"adapter {lora_id} is not loaded, so it cannot be pinned")
        if len(self._pinned | {lora_id}) >= self.num_places:
            raise ConflictError(
                f"at most {self.num_places - 1} adapters can be pinned, with --max-loras {self.num_places}"
            )
        self._pinned.add(lora_id)

    @property
    def state(self) -> LoraState:
        return LoraState(sorted(self._ready), sorted(self._pinned))

    # -------------------------------------------------------------------------------- choosing

    @property
    def _num_taken(self) -> int:
        return len(self._ready) + len(self._coming)

    def _idle(self, in_front: set[LoraId]) -> LoraId | None:
        """Of those that nobody needs the one that was used longest ago."""
        kept = (in_front, self._num_running, self._pinned)
        return next((lora_id for lora_id in self._ready if not any(lora_id in each for each in kept)), None)

    def _one_to_close(self, was_closed: LoraId | None, in_front: set[LoraId]) -> LoraId | None:
        """The same as before if it can be, else the one that the fewest need."""
        candidates = [lora_id for lora_id in self._ready if lora_id not in self._pinned]
        if was_closed in candidates:
            return was_closed
        return min(candidates, key=lambda each: (each in in_front, self._num_running[each]), default=None)

    def _give_up(self, lora_id: LoraId | None) -> None:
        if lora_id is not None:
            del self._ready[lora_id]
            self._unwanted.discard(lora_id)

    def __repr__(self) -> str:
        return f"<AdapterPlaces {self.num_places}: {[*self._ready]} ready, {self._coming} coming>"
