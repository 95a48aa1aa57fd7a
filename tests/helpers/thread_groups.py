"""Ranks as threads of one process: groups that exchange tensors through a list, for tests of what runs on them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, final

import torch

from gpu.groups.group import Group, Solo
from gpu.groups.groups import Groups
from protocol.errors import RankLostError
from protocol.parallel import ParallelSpec

T = TypeVar("T")
SECONDS = 20.0
"""How long a thread waits for the others."""


@final
class Round:
    """One call that all make."""

    def __init__(self, size: int) -> None:
        self.given: list[torch.Tensor] = [torch.empty(0)] * size
        self.missing = size


@final
class Meeting:
    """What the threads of one group have in common. `ranks` are their places in the world."""

    def __init__(self, ranks: list[int], seconds: float = SECONDS) -> None:
        self.ranks = ranks
        self.seconds = seconds
        self._round = Round(len(ranks))
        self._changed = threading.Condition()
        self._is_over = False
        pairs = [(source, to) for source in range(len(ranks)) for to in range(len(ranks))]
        self.sent: dict[tuple[int, int], queue.Queue[torch.Tensor | None]] = {pair: queue.Queue() for pair in pairs}

    def exchange(self, index: int, x: torch.Tensor) -> list[torch.Tensor] | None:
        """What all gave, in order, not to be written to; None if one does not come. What all have given, each gets,
        whoever has left meanwhile."""
        with self._changed:
            here = self._round
            here.given[index] = x
            here.missing -= 1
            if here.missing == 0:
                self._round = Round(len(self.ranks))
                self._changed.notify_all()
            elif not self._changed.wait_for(lambda: here.missing == 0 or self._is_over, self.seconds):
                self._is_over = True
                self._changed.notify_all()
            return here.given if here.missing == 0 else None

    def leave(self) -> None:
        """Nobody waits any longer: a rank has failed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for messages in self.sent.values():
            messages.put(None)


@final
class ThreadGroup:
    """A Group. Waits no longer than the meeting's seconds; who is missing then is not known."""

    def __init__(self, meeting: Meeting, index: int) -> None:
        self._meeting = meeting
        self.index = index
        self.size = len(meeting.ranks)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        given = self._exchange(x, "a sum")
        if x.dtype in (torch.bfloat16, torch.float16):  # rounded once
            given = [one.float() for one in given]
        total = given[0].clone()
        for one in given[1:]:
            total += one
        return total.to(x.dtype)

    def all_gather(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return torch.cat(self._exchange(x, "a gathering"), dim)

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        return x.copy_(self._exchange(x, "a broadcast")[source])

    def send(self, x: torch.Tensor, to: int) -> None:
        self._meeting.sent[self.index, to].put(x.clone())

    def receive(self, into: torch.Tensor, source: int) -> torch.Tensor:
        try:
            sent = self._meeting.sent[source, self.index].get(timeout=self._meeting.seconds)
        except queue.Empty:
            sent = None
        if sent is None:
            raise RankLostError(self._meeting.ranks[source], "has not come", "a message")
        assert sent.shape == into.shape
        assert sent.dtype == into.dtype
        return into.copy_(sent)

    def _exchange(self, x: torch.Tensor, what: str) -> list[torch.Tensor]:
        """Copies of what all gave, in order."""
        given = self._meeting.exchange(self.index, x.clone())
        if given is None:
            raise RankLostError(None, f"has not come within {self._meeting.seconds:g} s", what)
        assert all(one.shape == x.shape and one.dtype == x.dtype for one in given), f"shapes or types differ in {what}"
        return given


def run_ranks(run: Callable[[Groups], T], parallel: ParallelSpec, seconds: float = SECONDS) -> list[T]:
    """What `run` gives in each rank of the world, by rank. Raises the first one's error, and leaves none running."""
    meetings = Meetings(parallel, seconds)

    def run_one(rank: int) -> T:
        try:
            return run(meetings.groups(rank))
        except BaseException:
            meetings.leave()
            raise

    with ThreadPoolExecutor(parallel.world) as threads:
        results = [threads.submit(run_one, rank) for rank in range(parallel.world)]
    errors = [error for result in results if (error := result.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, RankLostError)):  # a cause before its consequences
        raise error
    return [result.result() for result in results]


def thread_groups(parallel: ParallelSpec, seconds: float = SECONDS) -> list[Groups]:
    """Those of each rank of the world, by rank; each for a thread of its own."""
    meetings = Meetings(parallel, seconds)
    return [meetings.groups(rank) for rank in range(parallel.world)]


@final
class Meetings:
    """Of all groups of a world."""

    def __init__(self, parallel: ParallelSpec, seconds: float) -> None:
        self._parallel = parallel
        tensor, stages = range(parallel.tensor), range(parallel.pipeline)
        self._world = Meeting(list(range(parallel.world)), seconds)
        self._control = Meeting(list(range(parallel.world)), seconds)
        self._tensor = [Meeting([stage * len(tensor) + index for index in tensor], seconds) for stage in stages]
        self._pipeline = [Meeting([stage * len(tensor) + index for stage in stages], seconds) for index in tensor]

    def groups(self, rank: int) -> Groups:
        """Those of this rank."""
        stage, index = divmod(rank, self._parallel.tensor)
        tensor = _group(self._tensor[stage], index)
        return Groups(
            tensor=tensor,
            pipeline=_group(self._pipeline[index], stage),
            expert=tensor if self._parallel.experts else Solo(),
            world=_group(self._world, rank),
            control=_group(self._control, rank),
            parallel=self._parallel,
        )

    def leave(self) -> None:
        for meeting in (self._world, self._control, *self._tensor, *self._pipeline):
            meeting.leave()


def _group(meeting: Meeting, index: int) -> Group:
    return Solo() if len(meeting.ranks) == 1 else ThreadGroup(meeting, index)
