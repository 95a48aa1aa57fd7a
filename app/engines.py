"""The engines behind an API server as it knows them: which are attached, what they learnt and what they count. Pure;
kept by app/engine_client.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import msgspec

from actors.handles import ActorState
from app.engine_totals import EngineTotals
from app.late_actors import serves
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineFacts


@final
class Engines:
    """Attached are those whose outputs are heard."""

    def __init__(self) -> None:
        self.attached: dict[EngineIndex, Epoch] = {}
        self.facts: EngineFacts | None = None
        """What is true of all of them; None until the first one was ready."""
        self._facts: dict[EngineIndex, EngineFacts] = {}
        self._totals = EngineTotals()

    def is_attached(self, index: EngineIndex, epoch: Epoch) -> bool:
        return self.attached.get(index) == epoch

    def was_attached(self, index: EngineIndex, epoch: Epoch) -> bool:
        """Whether it is only heard again."""
        return self._totals.was_attached(index, epoch)

    def attach(self, index: EngineIndex, epoch: Epoch, facts: EngineFacts) -> None:
        self.attached[index] = epoch
        self._totals.attach(index, epoch, facts.num_blocks)
        self._facts[index] = facts
        # A request may go to any of them, and to another one after a death. Their caches may differ: they took what
        # memory there was when they started.
        shortest = min(known.max_model_len for known in self._facts.values())
        self.facts = msgspec.structs.replace(facts, max_model_len=shortest)

    def detach(self, index: EngineIndex, epoch: Epoch) -> None:
        if self.is_attached(index, epoch):
            del self.attached[index]

    def take(self, index: EngineIndex, stats: EngineStats) -> None:
        """What an engine that is attached counts now."""
        self._totals.take(index, stats)

    @property
    def stats(self) -> EngineStats:
        return self._totals.reading(self.attached)

    def latest(self) -> dict[EngineIndex, EngineStats]:
        """For its gauges: what each that is attached said last, without adding up what it counted before."""
        return self._totals.latest(self.attached)

    def stats_of_each(self) -> dict[EngineIndex, EngineStats]:
        return self._totals.readings(self.attached)

    def facts_of(self, index: EngineIndex) -> EngineFacts | None:
        return self._facts.get(index)

    def serving(self, states: Sequence[ActorState]) -> list[EngineIndex]:
        """Those that are to get requests. As long as nobody told of an engine by its index, all that are attached."""
        known = {state.engine_index: serves(state) for state in states if state.engine_index is not None}
        return [index for index in self.attached if known.get(index, True)]
