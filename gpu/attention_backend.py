"""Who computes attention: the seam between the decoder, which only calls what was planned, and a device's kernels.

GatherBackend (here) runs anywhere and is the reference; gpu/varlen_attention is for GPUs. Used by gpu/torch_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from gpu.batch import StepBatch, make_batch
from protocol.step import Row


class AttentionBackend(Protocol):
    """Plans a step's attention while it puts the step where it is computed."""

    @property
    def name(self) -> str:
        """For the log."""

    def batch(self, rows: Sequence[Row]) -> StepBatch:
        """`rows` is not empty, and each row has tokens and blocks for them."""


class GatherBackend:
    """Copies each sequence's blocks together and attends with torch's scaled_dot_product_attention."""

    name = "gather"

    def __init__(
        self, windows: Sequence[int | None], block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._windows = windows
        self._block_size = block_size
        self._dtype = dtype
        self._device = device

    def batch(self, rows: Sequence[Row]) -> StepBatch:
        return make_batch(rows, self._windows, self._block_size, self._dtype, self._device)
