"""The way of a step's results back to the host: queued behind what computes them, and waited for alone.

A plain copy would wait for everything that is queued on the device. Used by gpu/sampler and gpu/logprobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Fetch:
    """Tensors on their way; on a CPU they are there already, and nothing is copied."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """`tensors` are of one device, and not empty."""
        self._event: torch.cuda.Event | None = None
        if tensors[0].device.type != "cuda":
            self._here = list(tensors)
            return
        # Pinned memory is recycled by torch once the copy is done. The event sleeps instead of keeping a core busy.
        self._here = [
            torch.empty(one.shape, dtype=one.dtype, pin_memory=True).copy_(one, non_blocking=True) for one in tensors
        ]
        self._event = torch.cuda.Event(blocking=True)
        self._event.record()

    def wait(self) -> list[torch.Tensor]:
        """On the host, in the order in which they were given. May be called from another thread, and again."""
        if self._event is not None:
            self._event.synchronize()
        return self._here
