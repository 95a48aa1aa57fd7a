"""A Group over torch's process groups: NCCL for tensors on CUDA, gloo for those on CPUs.

Sums have the same bits on every rank, since each part of a tensor is added up by one of them, which hands it to the
others; in which order the ranks' parts are added depends on the tensor's size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import attrs
import torch
import torch.distributed as dist

from gpu.groups.presence import Presence
from protocol.errors import RankLostError

MAX_MESSAGES = 64
"""Under way from one rank. One more waits for the first of them, so that an error is not overlooked for ever."""
MAX_BYTES = 64 * 2**20
"""Of these messages: memory that nobody else reckons with. One alone may have more."""


@attrs.frozen
class _Message:
    """What has to stay as it is until it is sent."""

    work: dist.Work
    tensor: torch.Tensor


@final
class TorchGroup:
    """Not to be used by two threads at a time."""

    def __init__(self, group: dist.ProcessGroup, back: dist.ProcessGroup, presence: Presence) -> None:
        """`back`: another group of the same ranks, for messages to a rank before the sender. NCCL carries out the
        messages between two ranks one after the other, so that two that send first and then receive would wait for
        each other for ever."""
        self.index = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._group = group
        self._back = back
        self._presence = presence
        self._ranks = dist.get_process_group_ranks(group)
        self._under_way: deque[_Message] = deque()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        with self._naming("a sum"):
            dist.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        x = x.contiguous()
        into = x.new_empty(self.size, *x.shape)
        with self._naming("a gathering"):
            dist.all_gather_single(into.view(-1), x.view(-1), group=self._group)
        return torch.cat(into.unbind(), dim)

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        whole = x.contiguous()
        with self._naming("a broadcast"):
            dist.broadcast(whole, group=self._group, group_src=source)
        return x if whole is x else x.copy_(whole)

    def send(self, x: torch.Tensor, to: int) -> None:
        x = x.contiguous()
        with self._naming("a message"):
            while self._under_way and not self._has_room(x):
                self._under_way.popleft().work.wait()
            work = dist.isend(x, group=self._between(self.index, to), group_dst=to)
        assert work is not None, "this rank is in the group"
        self._under_way.append(_Message(work, x))

    def receive(self, into: torch.Tensor, source: int) -> torch.Tensor:
        whole = into.contiguous()
        with self._naming("a message"):
            dist.recv(whole, group=self._between(source, self.index), group_src=source)
        return into if whole is into else into.copy_(whole)

    def _has_room(self, x: torch.Tensor) -> bool:
        held = sum(message.tensor.nbytes for message in self._under_way)
        return len(self._under_way) < MAX_MESSAGES and held + x.nbytes <= MAX_BYTES

    def _between(self, source: int, to: int) -> dist.ProcessGroup:
        return self._group if source < to else self._back

    @contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        """torch raises RuntimeError, or one derived from it, for whatever goes wrong between ranks."""
        try:
            yield
        except RuntimeError as error:
            rank, reason = self._presence.lost(self._ranks)
            raise RankLostError(rank, reason, f"{what} ({str(error).splitlines()[0]})") from error
