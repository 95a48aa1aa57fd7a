"""What each slot sampled last, in the device's own memory: the next step can be on its way before the host knows.

A row whose last token is PENDING gets a mark in its place, which says whose token is meant; the model looks the token
up where it computes. Filled by gpu/sampler, read by gpu/torch_model and within its graphs; made by gpu/cuda_model.
"""

from __future__ import annotations

import attrs
import torch

from gpu.batch import StepBatch
from protocol.ids import Slot


class LastTokens:
    """One token per slot. The memory stays where it is, so that graphs may be recorded over it."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._tokens = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def mark(self, slot: Slot) -> int:
        """What stands in a row for the token that this slot samples last before the row is computed."""
        assert slot < len(self._tokens), f"slot {slot} of {len(self._tokens)}"
        return -1 - slot

    def store(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Both [rows] int64. A row with a negative token failed: its slot keeps the one before, which is at least a
        token of the vocabulary, since a void row is computed all the same."""
        self._tokens[slots] = torch.where(token_ids < 0, self._tokens[slots], token_ids)

    def resolved(self, batch: StepBatch) -> StepBatch:
        """The batch with tokens in the place of marks, without the host's help."""
        return attrs.evolve(batch, token_ids=self.looked_up(batch.token_ids))

    def looked_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] int64, some of them marks, to the tokens that are meant."""
        return torch.where(token_ids < 0, self._tokens[(-1 - token_ids).clamp_(min=0)], token_ids)
