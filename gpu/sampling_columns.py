"""What the sampler needs of a batch's sequences, as columns of tensors: made when the batch's members change.

Rows that have a feature in common (penalties, say) are one part, and are changed together. On a CPU each row is a part
of its own where whole rows are gone over many times: its numbers then stay in the cache. Used by gpu/sampler and
gpu/truncation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import torch

from gpu.noise import seed_key
from gpu.sequence_slot import SequenceSlot
from protocol.sampling import SamplingParams

MOST_TOP_K = 512
"""Up to here the k best tokens are looked at alone; what is above is as good as no limit for the work it saves."""


@attrs.frozen(eq=False)
class Part:
    """Some rows of a batch, and what they have."""

    rows: slice | torch.Tensor
    """Which ones: a slice of all of them, or [count] int64."""
    columns: tuple[torch.Tensor, ...] = ()
    """Each [count, 1]."""
    state: torch.Tensor | None = None
    """[count, vocab]. The slots hold views of it, and what one of both changes the other sees."""

    def change(self, x: torch.Tensor, how: Callable[[torch.Tensor, Part], None]) -> None:
        """Let `how` change these rows of x [rows, vocab], in place."""
        these = x[self.rows]
        how(these, self)
        if isinstance(self.rows, torch.Tensor):
            x[self.rows] = these


class SamplingColumns:
    """One batch's members in their order. With `together` rows are parts as large as can be."""

    def __init__(self, slots: Sequence[SequenceSlot], vocab_size: int, device: torch.device, together: bool) -> None:
        self.slots = list(slots)
        self._device = device
        self._together = together
        params = [slot.params for slot in slots]
        self.seeds = self._whole([seed_key(one.seed) for one in params])
        """[rows] int64: the seeds, mixed."""
        self.biased = [self._biased(group) for group in self._groups(lambda slot: slot.bias is not None)]
        """State: what is added."""
        self.seen = [self._seen(group) for group in self._groups(lambda slot: slot.seen is not None)]
        """Columns: repetition penalties; state: whether a token was there."""
        self.counted = [self._counted(group) for group in self._groups(lambda slot: slot.output_counts is not None)]
        """Columns: frequency and presence penalties; state: how often a token was put out."""
        drawn = [i for i, one in enumerate(params) if one.temperature > 0.0]
        self.drawn = self._part(drawn, [params[i].temperature for i in drawn]) if drawn else None
        """The rest is greedy. The parts below are of rows among these."""
        params = [params[i] for i in drawn]

        def limited(has: Callable[[SamplingParams], bool], value: Callable[[SamplingParams], float]) -> Part | None:
            places = [i for i, one in enumerate(params) if has(one)]
            return self._part(places, [value(params[i]) for i in places]) if places else None

        def has_top_k(one: SamplingParams) -> bool:
            return 0 < one.top_k < vocab_size

        self.top_k = limited(has_top_k, lambda one: one.top_k)
        self.most_top_k = max((one.top_k for one in params if has_top_k(one)), default=0)
        self.short_top_p = limited(
            lambda one: one.top_p < 1.0 and has_top_k(one) and one.top_k <= MOST_TOP_K, lambda one: one.top_p
        )
        self.long_top_p = limited(
            lambda one: one.top_p < 1.0 and not (has_top_k(one) and one.top_k <= MOST_TOP_K), lambda one: one.top_p
        )
        self.min_p = limited(lambda one: one.min_p > 0.0, lambda one: math.log(one.min_p))

    def _groups(self, has: Callable[[SequenceSlot], bool]) -> list[list[int]]:
        places = [place for place, slot in enumerate(self.slots) if has(slot)]
        return [places] if self._together and places else [[place] for place in places]

    def _biased(self, places: list[int]) -> Part:
        slots = [self.slots[place] for place in places]
        state = _stack([slot.bias for slot in slots])
        for slot, row in zip(slots, state, strict=True):
            slot.bias = row
        return self._part(places, state=state)

    def _seen(self, places: list[int]) -> Part:
        slots = [self.slots[place] for place in places]
        state = _stack([slot.seen for slot in slots])
        for slot, row in zip(slots, state, strict=True):
            slot.seen = row
        return self._part(places, [slot.params.repetition_penalty for slot in slots], state=state)

    def _counted(self, places: list[int]) -> Part:
        slots = [self.slots[place] for place in places]
        state = _stack([slot.output_counts for slot in slots])
        for slot, row in zip(slots, state, strict=True):
            slot.output_counts = row
        params = [slot.params for slot in slots]
        frequency, presence = [one.frequency_penalty for one in params], [one.presence_penalty for one in params]
        return self._part(places, frequency, presence, state=state)

    def _part(self, places: list[int], *columns: Sequence[float], state: torch.Tensor | None = None) -> Part:
        rows: slice | torch.Tensor = slice(places[0], places[-1] + 1)
        if len(places) != places[-1] + 1 - places[0]:
            rows = self._whole(places)
        made = [torch.tensor(column, device=self._device).unsqueeze(1) for column in columns]
        return Part(rows, tuple(made), state)

    def _whole(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _stack(rows: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """[rows, vocab]; a single row is not copied."""
    there = [row for row in rows if row is not None]
    return there[0].unsqueeze(0) if len(there) == 1 else torch.stack(there)
