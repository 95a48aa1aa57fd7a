"""The pieces of a layer that ranks share: each rank has its part of the weights, and the group makes one result of all.

Each takes the group that it needs. Used by gpu/models/decoder_loader where that has more than one rank.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from gpu.groups.group import Group
from gpu.layers.linear import Linear


class RowParallelLinear:
    """Implements gpu.layers.linear.Linear around one that has some of the columns, for x that has the same ones."""

    def __init__(self, linear: Linear, bias: torch.Tensor | None, group: Group) -> None:
        """`linear` has no bias of its own: that, [out], is added once."""
        self.linear = linear
        self.bias = bias
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.group.all_reduce(self.linear(x))
        return y if self.bias is None else y + self.bias


class ParallelHead:
    """Implements gpu.layers.linear.Linear around one that has some of the rows: all ranks have all logits."""

    def __init__(self, linear: Linear, rows: int, vocab_size: int, group: Group) -> None:
        """`rows` is what each rank's part is filled up to."""
        self.linear = linear
        self.group = group
        self._rows = rows
        self._vocab_size = vocab_size

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        part = self.linear(x)
        whole = self.group.all_gather(F.pad(part, (0, self._rows - part.shape[1])), dim=1)
        return whole[:, : self._vocab_size].contiguous()


class Embedding(Protocol):
    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] int64 to [tokens, hidden], of fresh memory."""


class PlainEmbedding:
    """With all rows."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(token_ids, self.table)


class ParallelEmbedding:
    """With some rows, from `first` on: what is elsewhere is zero here, and the group adds up."""

    def __init__(self, table: torch.Tensor, first: int, group: Group) -> None:
        self.table = table
        self.group = group
        self._first = first

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        places = token_ids - self._first
        elsewhere = (places < 0) | (places >= len(self.table))
        found = F.embedding(places.masked_fill_(elsewhere, 0), self.table)
        return self.group.all_reduce(found.masked_fill_(elsewhere.unsqueeze(1), 0))


class ParallelWholeNorm:
    """As layers.norm.WholeNorm, where each rank has as many of the heads as any other."""

    def __init__(self, weight: torch.Tensor, eps: float, group: Group) -> None:
        """`weight` is [local heads * head_dim]."""
        self.weight = weight
        self.eps = eps
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, local heads, head_dim] to the same shape."""
        wide = x.flatten(-2).float()
        # Heads that several ranks hold count several times, all of them as often: the mean is the same.
        mean = self.group.all_reduce(wide.square().mean(dim=-1, keepdim=True)) / self.group.size
        return ((wide * torch.rsqrt(mean + self.eps)) * self.weight.float()).to(x.dtype).view(x.shape)


class Combine(Protocol):
    """One result of what each rank of a group has of it."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape, with the same bits on every rank."""


class Reduced:
    """The group's sum: each rank has computed a part of each expert."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.all_reduce(x)


class GatheredSum:
    """What each rank's experts gave, added up in the order of the ranks, which is that of the experts."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.group.all_gather(x.unsqueeze(0)).unbind()
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return whole
