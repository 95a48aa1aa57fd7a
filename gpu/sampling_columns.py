"""What the sampler needs of a batch's sequences, as columns of tensors: made when the batch's members change.

Their numbers go to the device in one staged copy, so all of them are gathered before there is a part. Rows that have a
feature in common (penalties, say) are one part, and are changed together. On a CPU each row is a part of its own where
whole rows are gone over many times: its numbers then stay in the cache. Used by gpu/sampler and gpu/truncation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch

from gpu.noise import seed_key
from gpu.sequence_slot import SequenceSlot
from gpu.staging import Staging
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


@attrs.frozen(eq=False)
class _Gathered:
    """A part whose numbers are still on the host."""

    places: list[int]
    floats: tuple[Sequence[float], ...] = ()
    longs: tuple[Sequence[int], ...] = ()
    state: torch.Tensor | None = None

    @property
    def is_run(self) -> bool:
        """Whether a slice says which rows these are."""
        return len(self.places) == self.places[-1] + 1 - self.places[0]


class SamplingColumns:
    """One batch's members in their order. With `together` rows are parts as large as can be."""

    def __init__(self, slots: Sequence[SequenceSlot], vocab_size: int, staging: Staging, together: bool) -> None:
        """`staging` is for such columns alone: it waits for its last copy, and a step's numbers follow at once."""
        self.slots = list(slots)
        self._together = together
        params = [slot.params for slot in slots]
        biased = [self._biased(group) for group in self._groups(lambda slot: slot.bias is not None)]
        seen = [self._seen(group) for group in self._groups(lambda slot: slot.seen is not None)]
        counted = [self._counted(group) for group in self._groups(lambda slot: slot.output_counts is not None)]
        drawn = [i for i, one in enumerate(params) if one.temperature > 0.0]
        temperatures = [_Gathered(drawn, ([params[i].temperature for i in drawn],))] if drawn else []
        limits = _Limits([params[i] for i in drawn], vocab_size)
        gathered = [*biased, *seen, *counted, *temperatures, *limits.gathered()]
        self.seeds, parts = _place([seed_key(one.seed) for one in params], gathered, staging)
        """[rows] int64: the seeds, mixed."""
        self.biased = [parts[one] for one in biased]
        """State: what is added."""
        self.seen = [parts[one] for one in seen]
        """Columns: repetition penalties; state: whether a token was there."""
        self.counted = [parts[one] for one in counted]
        """Columns: frequency and presence penalties; state: how often a token was put out."""
        self.drawn = parts[temperatures[0]] if temperatures else None
        """The rest is greedy. The parts below are of rows among these."""
        self.top_k = None if limits.top_k is None else parts[limits.top_k]
        self.most_top_k = limits.most_top_k
        self.short_top_p = None if limits.short_top_p is None else parts[limits.short_top_p]
        self.long_top_p = None if limits.long_top_p is None else parts[limits.long_top_p]
        self.min_p = None if limits.min_p is None else parts[limits.min_p]

    def _groups(self, has: Callable[[SequenceSlot], bool]) -> list[list[int]]:
        places = [place for place, slot in enumerate(self.slots) if has(slot)]
        return [places] if self._together and places else [[place] for place in places]

    def _biased(self, places: list[int]) -> _Gathered:
        slots = [self.slots[place] for place in places]
        state = _stack([slot.bias for slot in slots])
        for slot, row in zip(slots, state, strict=True):
            slot.bias = row
        return _Gathered(places, state=state)

    def _seen(self, places: list[int]) -> _Gathered:
        slots = [self.slots[place] for place in places]
        state = _stack([slot.seen for slot in slots])
        for slot, row in zip(slots, state, strict=True):
            slot.seen = row
        return _Gathered(places, ([slot.params.repetition_penalty for slot in slots],), state=state)

    def _counted(self, places: list[int]) -> _Gathered:
        slots = [self.slots[place] for place in places]
        state = _stack([slot.output_counts for slot in slots])
        for slot, row in zip(slots, state, strict=True):
            slot.output_counts = row
        params = [slot.params for slot in slots]
        frequency, presence = [one.frequency_penalty for one in params], [one.presence_penalty for one in params]
        return _Gathered(places, (frequency, presence), state=state)


class _Limits:
    """What top_k, top_p and min_p ask for, of rows that draw."""

    def __init__(self, params: Sequence[SamplingParams], vocab_size: int) -> None:
        def places(has: Callable[[SamplingParams], bool]) -> list[int]:
            return [i for i, one in enumerate(params) if has(one)]

        def has_top_k(one: SamplingParams) -> bool:
            return 0 < one.top_k < vocab_size

        def has_short_top_k(one: SamplingParams) -> bool:
            return has_top_k(one) and one.top_k <= MOST_TOP_K

        self._params = params
        with_top_k = places(has_top_k)
        top_k = [params[i].top_k for i in with_top_k]
        self.top_k = _Gathered(with_top_k, longs=(top_k,)) if top_k else None
        self.most_top_k = max(top_k, default=0)
        self.short_top_p = self._part(places(lambda one: one.top_p < 1.0 and has_short_top_k(one)), _top_p)
        self.long_top_p = self._part(places(lambda one: one.top_p < 1.0 and not has_short_top_k(one)), _top_p)
        self.min_p = self._part(places(lambda one: one.min_p > 0.0), _log_min_p)

    def gathered(self) -> list[_Gathered]:
        return [one for one in (self.top_k, self.short_top_p, self.long_top_p, self.min_p) if one is not None]

    def _part(self, places: list[int], value: Callable[[SamplingParams], float]) -> _Gathered | None:
        return _Gathered(places, ([value(self._params[i]) for i in places],)) if places else None


def _top_p(params: SamplingParams) -> float:
    return params.top_p


def _log_min_p(params: SamplingParams) -> float:
    return math.log(params.min_p)


def _place(
    seeds: list[int], gathered: Sequence[_Gathered], staging: Staging
) -> tuple[torch.Tensor, dict[_Gathered, Part]]:
    """All of it on the device: the seeds, and a part for each that was gathered."""
    longs: list[Sequence[int]] = [seeds]
    floats: list[np.ndarray] = []
    for one in gathered:
        longs += [*one.longs] if one.is_run else [*one.longs, one.places]
        floats += [np.array(column, dtype=np.float32) for column in one.floats]
    placed = staging.place(longs, [column.view(np.int32) for column in floats])
    next_long, next_float = iter(placed[0]), iter(placed[1])
    placed_seeds = next(next_long)
    parts = {}
    for one in gathered:
        whole = [next(next_long).unsqueeze(1) for _ in one.longs]
        rows = slice(one.places[0], one.places[-1] + 1) if one.is_run else next(next_long)
        columns = [next(next_float).view(torch.float32).unsqueeze(1) for _ in one.floats]
        parts[one] = Part(rows, (*whole, *columns), one.state)
    return placed_seeds, parts


def _stack(rows: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """[rows, vocab]; a single row is not copied."""
    there = [row for row in rows if row is not None]
    return there[0].unsqueeze(0) if len(there) == 1 else torch.stack(there)
