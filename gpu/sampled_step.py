"""A step whose tokens and vectors have been made, maybe before the host knows them. Made by gpu/torch_runner.

The device may go on with the next step meanwhile (gpu/last_tokens); the host reads here, in its own time, what was
sampled, and adds it to what it remembers of the sequences.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from gpu.last_tokens import LastTokens
from gpu.logprobs import LogprobsUnderWay
from gpu.pooling import PoolingUnderWay
from gpu.sampler import Sampler
from gpu.trial import Trial
from protocol.messages import TokenLogprobs
from protocol.step import PromptLogprobs, StepResult


class ChoiceUnderWay:
    """One token for each of some trials, with log-probabilities where they were asked for."""

    def __init__(
        self,
        sampler: Sampler,
        logits: torch.Tensor,
        trials: Sequence[Trial],
        asking: torch.Tensor,
        last_tokens: LastTokens | None,
    ) -> None:
        """`logits` [trials, vocab] are overwritten; `asking` [count] int64 is what `asking_trials` says of them."""
        self._trials = trials
        self._asking = asking_trials(trials)
        raw = logits[asking] if self._asking else None  # a copy
        self._chosen = sampler.choose(logits, [trial.next_row for trial in trials])
        self._chosen.grow(last_tokens)
        self._logprobs: LogprobsUnderWay | None = None
        self._counts = [trials[index].slot.params.logprobs or 0 for index in self._asking]
        if raw is not None:
            self._logprobs = LogprobsUnderWay(raw, self._chosen.token_ids[asking], max(self._counts))

    def take(self) -> None:
        """Wait for the tokens, and hand each to its trial."""
        logprobs: dict[int, TokenLogprobs] = {}
        choices = self._chosen.choices()
        if self._logprobs is not None:
            logprobs = dict(zip(self._asking, self._logprobs.rows(self._counts), strict=True))
        for index, (trial, choice) in enumerate(zip(self._trials, choices, strict=True)):
            trial.take(choice, logprobs.get(index) if choice.error is None else None)


def asking_trials(trials: Sequence[Trial]) -> list[int]:
    """Those whose requests want log-probabilities."""
    return [index for index, trial in enumerate(trials) if trial.slot.params.logprobs is not None]


class SampledStep:
    """Implements gpu.started_step.StartedStep."""

    def __init__(
        self,
        step: int,
        trials: Sequence[Trial],
        choice: ChoiceUnderWay | None,
        prompt_logprobs: list[PromptLogprobs],
        pooling: PoolingUnderWay | None = None,
    ) -> None:
        """Without `choice` all trials are decided."""
        self._step = step
        self._trials = trials
        self._choice = choice
        self._prompt_logprobs = prompt_logprobs
        self._pooling = pooling
        self._result: StepResult | None = None
        # The runner's own thread asks too, before a step that needs what this one sampled.
        self._lock = threading.Lock()

    @property
    def is_known(self) -> bool:
        """Whether somebody has asked for the result."""
        return self._result is not None

    def result(self) -> StepResult:
        with self._lock:
            if self._result is None:
                if self._choice is not None:
                    self._choice.take()
                sampled = [trial.result() for trial in self._trials]
                pooled = [] if self._pooling is None else self._pooling.take()
                self._result = StepResult(self._step, sampled, self._prompt_logprobs, pooled=pooled)
            return self._result
