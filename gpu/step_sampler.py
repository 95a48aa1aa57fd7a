"""From the hidden states of a step to a token for each row that asks for one. Used by gpu/torch_runner.

Picks the rows of logits that are needed (gpu/sampler chooses from them) and goes on behind drafts that were right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from gpu.last_tokens import LastTokens
from gpu.model import Computed, Model
from gpu.sampled_step import ChoiceUnderWay, asking_trials
from gpu.sampler import Sampler
from gpu.sequence_slot import SequenceSlot
from gpu.staging import Staging
from gpu.trial import Trial
from protocol.ids import Slot
from protocol.step import Row


@final
class StepSampler:
    """One per runner."""

    def __init__(self, sampler: Sampler, staging: Staging) -> None:
        self._sampler = sampler
        self._staging = staging

    def sample(
        self,
        model: Model,
        rows: Sequence[Row],
        slots: Mapping[Slot, SequenceSlot],
        computed: Computed,
        last_tokens: LastTokens | None,
    ) -> tuple[list[Trial], ChoiceUnderWay | None]:
        """Choose a token for each row that asks for one, and go on behind drafts that were right. With drafts all is
        decided on return; else the trials get their tokens when the choice is taken."""
        trials: list[Trial] = []
        places: list[int] = []
        for row, first in zip(rows, computed.first_token, strict=True):
            if row.sample:
                trials.append(Trial(row, slots[row.slot], len(places)))
                end = first + len(row.token_ids)
                places += range(end - 1 - row.num_drafts, end)
        if not trials:
            return [], None
        (where, asking), _ = self._staging.place([places, asking_trials(trials)], [])
        logits = model.logits(computed.hidden[where])
        if len(places) == len(trials):
            return trials, ChoiceUnderWay(self._sampler, logits, trials, asking, last_tokens)
        undecided = trials
        while undecided:
            next_rows = [trial.next_logits_row for trial in undecided]
            (where, asking), _ = self._staging.place([next_rows, asking_trials(undecided)], [])
            ChoiceUnderWay(self._sampler, logits[where], undecided, asking, last_tokens).take()
            undecided = [trial for trial in undecided if trial.goes_on]
        return trials, None
