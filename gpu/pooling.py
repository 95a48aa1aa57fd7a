"""From the hidden states of a step to the vectors of the prompts that it completed. Used by gpu/torch_runner.

What a vector is made of (gpu/prompt_pooling) goes through the model's final norm first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from gpu.fetch import Fetch
from gpu.model import Computed, Model
from gpu.prompt_pooling import PromptPooling
from gpu.sequence_slot import SequenceSlot
from gpu.staging import Staging
from protocol.ids import Slot
from protocol.pooling import PoolingParams
from protocol.step import Pooled, Row


class PoolingUnderWay:
    """The vectors that a step completed, on their way to the host."""

    def __init__(self, completed: Sequence[tuple[Slot, PromptPooling]]) -> None:
        """`completed` is not empty."""
        self._slots = [slot for slot, _ in completed]
        self._params = [pooling.params for _, pooling in completed]
        self._fetch = Fetch([torch.stack([pooling.vector() for _, pooling in completed])])

    def take(self) -> list[Pooled]:
        """Waits until they are here."""
        (vectors,) = self._fetch.wait()
        return [
            _pooled(slot, params, vector)
            for slot, params, vector in zip(self._slots, self._params, vectors.numpy(), strict=True)
        ]


def pool_rows(
    model: Model, rows: Sequence[Row], slots: Mapping[Slot, SequenceSlot], computed: Computed, staging: Staging
) -> PoolingUnderWay | None:
    """Take what a step computed of prompts that are to be pooled. None: it completed none of them."""
    places: list[int] = []
    takers: list[tuple[Row, PromptPooling, int]] = []
    for row, first in zip(rows, computed.first_token, strict=True):
        pooling = slots[row.slot].pooling
        if pooling is not None:
            wanted = pooling.wanted(row)
            places += range(first + wanted.start, first + wanted.stop)
            takers.append((row, pooling, len(wanted)))
    if places:
        (where,), _ = staging.place([places], [])
        states = model.normed(computed.hidden[where])
        done = 0
        for _, pooling, count in takers:
            if count:
                pooling.take(states[done : done + count])
            done += count
    completed = [(row.slot, pooling) for row, pooling, _ in takers if pooling.ends_with(row)]
    return PoolingUnderWay(completed) if completed else None


def _pooled(slot: Slot, params: PoolingParams, vector: np.ndarray) -> Pooled:
    """`vector` is [hidden] float64."""
    if not np.isfinite(vector).all():
        return Pooled(slot, b"", "the model's hidden states are not finite")
    vector = vector[: params.dimensions]
    length = float(np.sqrt(np.square(vector).sum()))
    if params.normalize and length > 0:
        vector = vector / length
    return Pooled(slot, vector.astype("<f4").tobytes())
