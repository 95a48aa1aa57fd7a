"""The sequences that wait for a slot and blocks, in the order in which they get them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import final

from actors.engine.sequence import Sequence, SequenceStatus

POLICIES = ("fcfs", "priority")

Rank = tuple[int, bool, float, int]
"""Sorts sequences, the best first."""


def rank_of(sequence: Sequence, policy: str) -> Rank:
    """Under "priority" the lower number wins; within that, who ran already, then who came first."""
    priority = sequence.request.priority if policy == "priority" else 0
    is_new = sequence.status is SequenceStatus.WAITING
    return (priority, is_new, sequence.request.arrival_time, sequence.arrival)


@final
class WaitingQueue:
    """Sorted by rank; a sequence's rank does not change while it is in here."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._ranks: list[Rank] = []
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def begun(self) -> Iterator[Sequence]:
        """Those that have run before, and were preempted."""
        return (s for s in self._sequences if s.status is SequenceStatus.PREEMPTED)

    def push(self, sequence: Sequence) -> None:
        rank = rank_of(sequence, self.policy)
        index = bisect.bisect(self._ranks, rank)
        self._ranks.insert(index, rank)
        self._sequences.insert(index, sequence)

    def remove(self, sequence: Sequence) -> None:
        index = bisect.bisect_left(self._ranks, rank_of(sequence, self.policy))
        assert self._sequences[index] is sequence, f"{sequence!r} is not where its rank says"
        del self._ranks[index]
        del self._sequences[index]

    def __repr__(self) -> str:
        return f"<WaitingQueue {self.policy}: {len(self)} sequences, first {next(iter(self), None)!r}>"
