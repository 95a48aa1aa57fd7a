"""The runner that computes: weights, KV pool, and per slot what sampling needs. Made by gpu.runner.open_runner."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpu.draft_model import DraftModel
from gpu.load_draft_model import load_models
from gpu.logprobs import token_logprobs
from gpu.model import Computed, Model
from gpu.runner import Report
from gpu.sampler import choose
from gpu.sequence_slot import SequenceSlot
from gpu.trial import Trial
from protocol.ids import Slot
from protocol.messages import TokenLogprobs
from protocol.spec import EngineFacts, EngineSpec
from protocol.step import PENDING, PromptLogprobs, Row, Sampled, StepPlan, StepResult

PROMPT_LOGITS_ROWS = 64
"""Rows of logits that are held at once for prompt_logprobs: 64 × 150,000 float32 are 38 MB."""


class TorchRunner:
    """Implements gpu.runner.Runner."""

    def __init__(self, model: Model, facts: EngineFacts, draft_model: DraftModel | None = None) -> None:
        self.facts = facts
        self._model: Model | None = model
        self._draft_model = draft_model
        self._slots: dict[Slot, SequenceSlot] = {}
        self._device = model.device

    @classmethod
    def load(cls, spec: EngineSpec, report: Report) -> TorchRunner:
        """Load the checkpoint that `spec` names. Raises CheckpointError if it cannot be served, StartError if the
        device or the data type is not to be had here."""
        with torch.inference_mode():
            model, size, draft_model = load_models(spec, report)
        report(1.0)
        facts = EngineFacts(
            max_model_len=size.max_model_len,
            num_blocks=size.num_blocks,
            block_size=size.block_size,
            vocab_size=model.vocab_size,
            device=str(model.device),
            dtype=model.dtype,
            weights_bytes=model.weights_bytes + (0 if draft_model is None else draft_model.weights_bytes),
            kv_cache_bytes=size.num_bytes + (0 if draft_model is None else draft_model.kv_cache_bytes),
        )
        return cls(model, facts, draft_model)

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        assert self._model is not None, "step after close"
        for freed in plan.freed_slots:
            self._slots.pop(freed, None)
            if self._draft_model is not None:
                self._draft_model.free(freed)
        for new in plan.new_sequences:
            self._slots[new.slot] = SequenceSlot(new, self.facts.vocab_size, self._device)
        if not plan.rows:
            return StepResult(plan.step, [])
        rows = [self._resolved(row) for row in plan.rows]
        computed = self._model.compute(rows)
        prompt_logprobs = list(self._prompt_logprobs(self._model, rows, computed))
        sampled = self._sample(self._model, rows, computed)
        if self._draft_model is None:
            return StepResult(plan.step, sampled, prompt_logprobs)
        # A row with a grammar never has guesses, and one that broke has no token to go on from.
        masked = {row.slot for row in rows if row.grammar_bitmask is not None}
        going_on = [one.slot for one in sampled if one.error is None and one.slot not in masked]
        drafts = self._draft_model.draft({slot: self._slots[slot] for slot in going_on})
        return StepResult(plan.step, sampled, prompt_logprobs, [drafts.get(one.slot, []) for one in sampled])

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
        if self._draft_model is not None:
            self._draft_model.close()
        self._model = None
        self._slots = {}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _resolved(self, row: Row) -> Row:
        """The row with the token that its slot sampled in the step before, where the plan could not know it. A void
        row, whose slot has none, computes some other token into blocks that are still its own."""
        if row.token_ids[-1] != PENDING:
            return row
        token_ids = [*row.token_ids[:-1], self._slots[row.slot].last_token_id]
        return Row(row.slot, row.start, token_ids, row.block_table, row.sample, row.grammar_bitmask)

    def _sample(self, model: Model, rows: list[Row], computed: Computed) -> list[Sampled]:
        """Choose a token for each row that asks for one, and go on behind drafts that were right."""
        trials: list[Trial] = []
        places: list[int] = []
        for row, first in zip(rows, computed.first_token, strict=True):
            if row.sample:
                trials.append(Trial(row, self._slots[row.slot], len(places)))
                end = first + len(row.token_ids)
                places += range(end - 1 - row.num_drafts, end)
        if not trials:
            return []
        logits = model.logits(computed.hidden[places])
        if len(places) == len(trials):
            _choose(logits, trials)
            return [trial.result() for trial in trials]
        undecided = trials
        while undecided:
            _choose(logits[[trial.next_logits_row for trial in undecided]], undecided)
            undecided = [trial for trial in undecided if trial.goes_on]
        return [trial.result() for trial in trials]

    def _prompt_logprobs(self, model: Model, rows: list[Row], computed: Computed) -> Iterator[PromptLogprobs]:
        """For each row inside a prompt whose request asked, what its positions say of the prompt tokens after them."""
        for row, first in zip(rows, computed.first_token, strict=True):
            slot = self._slots[row.slot]
            targets = slot.prompt_token_ids[row.start + 1 : row.start + len(row.token_ids) + 1]
            if slot.params.prompt_logprobs is None or not targets:
                continue
            found: list[TokenLogprobs] = []
            for done in range(0, len(targets), PROMPT_LOGITS_ROWS):
                part = targets[done : done + PROMPT_LOGITS_ROWS]
                logits = model.logits(computed.hidden[first + done : first + done + len(part)])
                found += token_logprobs(logits, part, [slot.params.prompt_logprobs] * len(part))
            yield PromptLogprobs(row.slot, row.start, found)


def _choose(logits: torch.Tensor, trials: list[Trial]) -> None:
    """Each trial's next token, with log-probabilities where they were asked for. `logits` [trials, vocab] are
    overwritten."""
    asking = [i for i, trial in enumerate(trials) if trial.slot.params.logprobs is not None]
    raw = logits[asking]  # a copy
    choices = choose(logits, [trial.next_row for trial in trials])
    kept = [place for place, index in enumerate(asking) if choices[index].error is None]
    logprobs: dict[int, TokenLogprobs] = {}
    if kept:
        indices = [asking[place] for place in kept]
        counts = [trials[index].slot.params.logprobs or 0 for index in indices]
        found = token_logprobs(raw[kept], [choices[index].token_id for index in indices], counts)
        logprobs = dict(zip(indices, found, strict=True))
    for index, (trial, choice) in enumerate(zip(trials, choices, strict=True)):
        trial.take(choice, logprobs.get(index))
