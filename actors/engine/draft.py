"""A step while the scheduler is making it: the token budget that is left, and who gets how much of it."""

from __future__ import annotations

from typing import final

from actors.engine.sequence import Sequence
from protocol.ids import Slot
from protocol.step import Row, StepPlan


@final
class StepDraft:
    """Becomes a StepPlan; stays with the scheduler until the plan's result is committed."""

    def __init__(self, number: int, max_num_tokens: int) -> None:
        self.number = number
        self.tokens_left = max_num_tokens
        self.counts: dict[Sequence, int] = {}
        """Tokens to compute, in the order of the plan's rows."""
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []

    def take(self, sequence: Sequence, count: int) -> None:
        self.counts[sequence] = count
        self.tokens_left -= count

    def give_up(self, sequence: Sequence) -> None:
        """A sequence is preempted after it had its share of this step."""
        self.tokens_left += self.counts.pop(sequence, 0)

    def as_plan(self, freed_slots: list[Slot]) -> StepPlan:
        return StepPlan(
            step=self.number,
            freed_slots=freed_slots,
            new_sequences=[sequence.as_new() for sequence in self.admitted],
            rows=[_row(sequence, count) for sequence, count in self.counts.items()],
        )

    def __repr__(self) -> str:
        return f"<StepDraft {self.number}: {len(self.counts)} rows, {self.tokens_left} tokens left>"


def _row(sequence: Sequence, count: int) -> Row:
    assert sequence.slot is not None
    start = sequence.num_computed_tokens
    is_last_chunk = count == sequence.num_uncomputed_tokens
    sample = is_last_chunk and sequence.params.max_tokens > 0
    return Row(
        slot=sequence.slot,
        start=start,
        token_ids=sequence.token_ids[start : start + count],
        block_table=sequence.block_table,
        sample=sample,
        grammar_bitmask=sequence.grammar.bitmask() if sample and sequence.grammar is not None else None,
    )
