"""What a layer needs of the ranks that share its work. Layers take the group that they need; models know no ranks."""

from __future__ import annotations

from typing import Protocol, final

import torch


class Group(Protocol):
    """Some ranks of one engine, in order. All of them make the same calls in the same order, with tensors of the same
    shapes and types; each returns when this rank's part is done.

    Raises RankLostError naming the rank, if that is known, when one of them is gone or has not come within the group's
    time. After that the group is of no use, and the process has to end.
    """

    @property
    def index(self) -> int:
        """This rank's place in the group, from 0."""

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the group, to the same bits on every rank; of `x`'s shape, and perhaps its memory."""

    def all_gather(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """Those of all ranks, one after the other along `dim`, which is the same size everywhere."""

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """What the rank at `source` gave, in `x`'s memory."""

    def send(self, x: torch.Tensor, to: int) -> None:
        """To one that receives it. May return before it has: `x` is not to be written to until the next step."""

    def receive(self, into: torch.Tensor, source: int) -> torch.Tensor:
        """What that one sends, in `into`'s memory."""


@final
class Solo:
    """A group of one: there is nothing to exchange."""

    index = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return x

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        return x

    def send(self, x: torch.Tensor, to: int) -> None:
        raise AssertionError("a group of one has nobody to send to")

    def receive(self, into: torch.Tensor, source: int) -> torch.Tensor:
        raise AssertionError("a group of one has nobody to receive from")
