"""The way of a step's whole numbers to the device: one copy for all of them, from memory that is pinned where it helps.

A copy out of pageable memory waits for the device, and each one costs some microseconds: a step has a dozen lists.
Used by gpu/varlen_attention, gpu/graphs, gpu/torch_runner, gpu/pooling, gpu/torch_loras and what samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

FIRST_BYTES = 1 << 16


class Staging:
    """One buffer on the host, filled anew for each step. On a CPU it is ordinary memory, and all else is the same."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._host = self._allocate(FIRST_BYTES)
        self._copied: torch.cuda.Event | None = None

    def place(
        self,
        longs: Sequence[Sequence[int]],
        ints: Sequence[Sequence[int] | np.ndarray],
        into: torch.Tensor | None = None,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The lists as tensors on the device, `longs` as int64 and `ints` as int32, each [its length].

        They are views of one tensor of bytes: a fresh one, or `into` (of num_bytes of the same lengths), which then
        holds them at the same places as the last time. The copy is queued and not waited for."""
        long_sizes, int_sizes = [len(one) for one in longs], [len(one) for one in ints]
        size = num_bytes(long_sizes, int_sizes)
        if self._copied is not None:
            self._copied.synchronize()  # the step before has long read it; the host must not overtake the copy
        if size > len(self._host):
            self._host = self._allocate(max(size, 2 * len(self._host)))
        here = self._host[:size]
        for part, values in zip(_flat(split(here, long_sizes, int_sizes)), [*longs, *ints], strict=True):
            if len(values):
                part.numpy()[:] = values
        there = torch.empty(size, dtype=torch.uint8, device=self._device) if into is None else into
        there.copy_(here, non_blocking=self._pinned)
        if self._pinned:
            self._copied = self._copied or torch.cuda.Event()
            self._copied.record()
        return split(there, long_sizes, int_sizes)

    def _allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)


def num_bytes(long_sizes: Sequence[int], int_sizes: Sequence[int]) -> int:
    """Of lists of these lengths. int64 come first, so that everything is aligned."""
    return 8 * sum(long_sizes) + 4 * sum(int_sizes)


def split(
    data: torch.Tensor, long_sizes: Sequence[int], int_sizes: Sequence[int]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Views of [num_bytes] uint8: int64 and int32."""
    middle = 8 * sum(long_sizes)
    longs = data[:middle].view(torch.int64).split(list(long_sizes)) if long_sizes else ()
    ints = data[middle:].view(torch.int32).split(list(int_sizes)) if int_sizes else ()
    return list(longs), list(ints)


def _flat(parts: tuple[list[torch.Tensor], list[torch.Tensor]]) -> list[torch.Tensor]:
    return [*parts[0], *parts[1]]
