"""What an engine has done since it started, in numbers. Kept by the scheduler, told with every output of the engine."""

from __future__ import annotations

from typing import final

from actors.engine.blocks import BlockPool
from actors.engine.draft import StepDraft
from actors.engine.residents import Residents
from actors.engine.sequence import Sequence
from actors.engine.step_counts import StepCounts
from protocol.engine_stats import EngineStats
from protocol.step import Pooled, Sampled, StepPlan, StepResult


@final
class EngineCounters:
    """Totals of steps, tokens, preemptions and guesses."""

    def __init__(self) -> None:
        self.num_steps = 0
        """That were planned."""
        self.num_preemptions = 0
        self.num_generated_tokens = 0
        self._num_prompt_tokens = 0
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0
        self._step_counts = StepCounts()

    def note_step(self, draft: StepDraft, plan: StepPlan, result: StepResult) -> None:
        """A step was committed."""
        accepted = self._count_guesses(draft, plan, result) if draft.num_guesses > draft.num_foreseen else ()
        self._step_counts.note(draft.num_taken, accepted)

    def note_prompt(self, sequence: Sequence, outcome: Sampled | Pooled | None) -> None:
        """Count the prompt once it is computed, once per request however often it is computed."""
        if sequence.is_prompt_counted:
            return
        if outcome is not None or sequence.num_computed_tokens >= sequence.num_prompt_tokens:
            sequence.is_prompt_counted = True
            self._num_prompt_tokens += sequence.num_prompt_tokens

    def stats(self, running: Residents, num_waiting: int, pool: BlockPool, *, whole: bool) -> EngineStats:
        """With the gauges of these. `whole`: with what is too long to be told with every output."""
        counts = self._step_counts
        return EngineStats(
            num_requests_running=len(running),
            num_requests_waiting=num_waiting,
            kv_blocks_used=pool.num_used,
            kv_blocks_total=pool.num_blocks,
            num_preemptions=self.num_preemptions,
            num_steps=self.num_steps,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self.num_generated_tokens,
            prefix_cache_queries=running.num_queried_tokens,
            prefix_cache_hits=running.num_found_tokens,
            spec_decode_num_drafts=self._num_drafts,
            spec_decode_num_draft_tokens=self._num_draft_tokens,
            spec_decode_num_accepted_tokens=self._num_accepted_tokens,
            external_cache_queries=running.kv.finds.num_queried_tokens,
            external_cache_hits=running.kv.finds.num_found_tokens,
            kv=running.kv.counts if whole else None,
            step_tokens=counts.num_tokens if whole else 0,
            steps_by_tokens=list(counts.by_num_tokens) if whole else [],
            spec_decode_accepted_by_position=list(counts.accepted_by_position) if whole else [],
        )

    def _count_guesses(self, draft: StepDraft, plan: StepPlan, result: StepResult) -> list[int]:
        """Count the proposer's; returns how many were right, per row that may have had some. What grammars foresee is
        nobody's merit."""
        sampling = zip((row for row in plan.rows if row.sample), result.sampled, strict=True)
        accepted = [one.num_accepted for row, one in sampling if row.grammar_bitmask is None]
        self._num_drafts += len(draft.guesses) - len(draft.guessed_bitmasks)
        self._num_draft_tokens += draft.num_guesses - draft.num_foreseen
        self._num_accepted_tokens += sum(accepted)
        return accepted
