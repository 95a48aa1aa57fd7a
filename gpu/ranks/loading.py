"""All ranks load their parts of a model, or none has it: one that cannot says so, and the others do not wait for it.

Used by gpu/ranks/lead and gpu/ranks/follower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

import attrs
import torch

from gpu.groups.group import Group
from gpu.groups.groups import Groups
from gpu.lacking_memory import lacking
from gpu.ranks.command_group import CommandGroup
from protocol.errors import CheckpointError, StartError

T = TypeVar("T")


@final
class OneGathering:
    """A group for the loader, which gathers once: how many KV blocks each rank has room for (gpu/agreed_pool)."""

    def __init__(self, group: Group) -> None:
        self.index, self.size = group.index, group.size
        self.is_done = False
        self.is_given_up = False
        """Some rank has no room, or nothing to have room for."""
        self._group = group

    def all_gather(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        found = self._group.all_gather(x, dim)
        self.is_done, self.is_given_up = True, bool((found == 0).any())
        return found

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.all_reduce(x)

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        return self._group.broadcast(x, source)

    def send(self, x: torch.Tensor, to: int) -> None:
        self._group.send(x, to)

    def receive(self, into: torch.Tensor, source: int) -> torch.Tensor:
        return self._group.receive(into, source)


def load_together(load: Callable[[Groups], T], groups: Groups, commands: CommandGroup) -> T:
    """What `load` gives here, if it gives something on all ranks. Raises what it raises here, or else MemoryError or
    CheckpointError with what a rank says that could not."""
    once = OneGathering(groups.control)
    loaded: list[T] = []
    error: CheckpointError | StartError | None = None
    try:
        problem = lacking(lambda: loaded.append(load(attrs.evolve(groups, control=once))))
        if problem is not None:
            loaded.clear()
            problem = f"there is not enough memory: {problem}"
    except (CheckpointError, StartError) as raised:
        problem, error = raised.message, raised
    if once.is_given_up:
        problem, error = None, None  # another rank's, which says it
    if not once.is_done:
        once.all_gather(torch.tensor([0]))  # no room for any block: the others give up too
    others = commands.agree(problem)
    if error is not None:
        raise error
    if problem is not None:
        raise MemoryError(problem)
    if others is not None:
        loaded.clear()
        raise CheckpointError(others)
    assert loaded, "who gives up says why"
    return loaded[0]
