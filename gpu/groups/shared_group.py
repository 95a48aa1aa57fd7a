"""A Group over memory that its ranks share: for CPUs, where all of them are on one host.

The calls are C++ (gpu/kernels/src/shared_group.h). Sums are taken in the order of the ranks, whatever the tensor's size
and whatever else it holds, so that a row's sum does not depend on the rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch

from gpu.groups.group import Group
from gpu.groups.shared_calls import SUMMED, Outcome, SharedCalls
from protocol.errors import RankLostError


@final
class SharedGroup:
    """Not to be used by two threads at a time. A message that has no room in the memory goes by `other`, which is of
    the same ranks; so do sums of types that cannot be added up here."""

    def __init__(self, calls: SharedCalls, address: int, index: int, ranks: Sequence[int], other: Group) -> None:
        """`address`: the opened group's. `ranks`: each one's place in the world."""
        self.index = index
        self.size = len(ranks)
        self._calls = calls
        self._address = address
        self._ranks = ranks
        self._other = other

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        summed = SUMMED.get(x.dtype)
        if summed is None:
            return self._other.all_reduce(x)
        x = x.contiguous()
        self._finish(self._calls.sum(self._address, summed, x.data_ptr(), x.numel()), "a sum")
        return x

    def all_gather(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        x = x.contiguous()
        dim %= x.dim()
        shape = list(x.shape)
        shape[dim] *= self.size
        into = x.new_empty(shape)
        outer = math.prod(x.shape[:dim])
        inner = math.prod(x.shape[dim:]) * x.element_size()
        outcome = self._calls.gather(self._address, x.data_ptr(), into.data_ptr(), outer, inner)
        self._finish(outcome, "a gathering")
        return into

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        whole = x.contiguous()
        self._finish(self._calls.broadcast(self._address, whole.data_ptr(), whole.nbytes, source), "a broadcast")
        return x if whole is x else x.copy_(whole)

    def send(self, x: torch.Tensor, to: int) -> None:
        x = x.contiguous()
        if self._finish(self._calls.send(self._address, x.data_ptr(), x.nbytes, to), "a message"):
            self._other.send(x, to)

    def receive(self, into: torch.Tensor, source: int) -> torch.Tensor:
        whole = into.contiguous()
        if self._finish(self._calls.receive(self._address, whole.data_ptr(), whole.nbytes, source), "a message"):
            self._other.receive(whole, source)
        return into if whole is into else into.copy_(whole)

    def _finish(self, outcome: int, what: str) -> bool:
        """Whether it is still to be done, by the other group."""
        if outcome == Outcome.DONE:
            return False
        if outcome == Outcome.ELSEWHERE:
            return True
        rank = self._ranks[self._calls.lost(self._address)]
        match Outcome(outcome):
            case Outcome.DEAD:
                reason = "has died"
            case Outcome.LEFT:
                reason = "has left"
            case Outcome.LATE:
                reason = "has not come in time"
            case _:
                raise AssertionError(f"rank {rank} makes another call, or one of another size, than {what} here")
        raise RankLostError(rank, reason, what)
