"""A step from the moment at which the scheduler begins to make it until its result is committed: the token budget that
is left, who gets how much of it, and what happened to these meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from actors.engine.kv_finds import Find
from actors.engine.kv_saves import Save
from actors.engine.sequence import Foreseen, Sequence
from protocol.ids import Slot
from protocol.step import KvCopy, StepPlan


@final
class StepDraft:
    """Becomes a StepPlan; stays with the scheduler until the plan's result is committed."""

    def __init__(self, number: int, max_num_tokens: int, max_chunk: int = 0, max_num_loads: int = 0) -> None:
        """`max_chunk` bounds the share of one sequence; 0 does not. `max_num_loads` bounds the blocks that come from
        the connector."""
        self.number = number
        self.max_num_tokens = max_num_tokens
        self.tokens_left = max_num_tokens
        self.num_taken = 0
        self.num_decodes = 0
        """Rows of sequences that go on by one token; the others have tokens of prompts."""
        self._max_chunk = max_chunk or max_num_tokens
        self.counts: dict[Sequence, int] = {}
        """Tokens to compute, in the order of the plan's rows."""
        self.guesses: dict[Sequence, list[int]] = {}
        """At the tokens after these; they take part of what nobody else had of the budget."""
        self.guessed_bitmasks: dict[Sequence, list[bytes]] = {}
        """What is allowed behind each guess, of sequences with a grammar."""
        self.num_guesses = 0
        self.num_foreseen = 0
        """Those of them that come from grammars."""
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.saves: list[Save] = []
        """Blocks that go to the connector, and below those that come from it."""
        self.loads: list[KvCopy] = []
        self.loading: list[Find] = []
        """What is pinned there for that."""
        self.loads_left = max_num_loads
        self.connection = 0
        """With which connector that is."""
        self.is_awaited = False
        """Nothing can be planned before its tokens are known: a grammar has to move on by one of them."""
        self.lost: set[Sequence] = set()
        """Rows whose KV is not theirs any more: a later plan gave their blocks to others."""

    @property
    def num_prefill_tokens(self) -> int:
        return self.num_taken - self.num_decodes

    def share_of(self, sequence: Sequence) -> int:
        """Tokens that it may compute in this step if it has room for them."""
        return min(sequence.num_unplanned_tokens, self.tokens_left, self._max_chunk)

    def end_decodes(self, prefill_budget: int) -> None:
        """All that come now have tokens of prompts: together no more than this many."""
        self.num_decodes = len(self.counts)
        self.tokens_left = min(self.tokens_left, prefill_budget)

    def take(self, sequence: Sequence, count: int) -> None:
        self.counts[sequence] = count
        self.num_taken += count
        self.tokens_left -= count

    def guess(self, sequence: Sequence, token_ids: list[int]) -> None:
        self.guesses[sequence] = token_ids
        self.num_guesses += len(token_ids)

    def foresee(self, sequence: Sequence, foreseen: list[Foreseen]) -> None:
        """The same for guesses of the sequence's grammar."""
        self.guess(sequence, [one.token_id for one in foreseen])
        self.guessed_bitmasks[sequence] = [one.bitmask for one in foreseen]
        self.num_foreseen += len(foreseen)

    def load(self, find: Find, copies: Iterable[KvCopy]) -> None:
        num_before = len(self.loads)
        self.loads += copies
        self.loads_left -= len(self.loads) - num_before
        self.loading.append(find)

    def give_up(self, sequence: Sequence) -> None:
        """A sequence is preempted after it had its share of this step."""
        count = self.counts.pop(sequence, 0)
        self.num_taken -= count
        self.tokens_left += count

    def as_plan(self, freed_slots: list[Slot]) -> StepPlan:
        new_sequences = [sequence.as_new() for sequence in self.admitted]
        if self.guesses:
            guesses, bitmasks = self.guesses, self.guessed_bitmasks
            rows = [s.plan_row(count, guesses.get(s, ()), bitmasks.get(s, ())) for s, count in self.counts.items()]
        else:
            rows = [sequence.plan_row(count) for sequence, count in self.counts.items()]
        self.is_awaited = any(row.grammar_bitmask is not None for row in rows)
        saves = [save.copy for save in self.saves]
        return StepPlan(self.number, freed_slots, new_sequences, rows, saves, self.loads)

    def __repr__(self) -> str:
        return f"<StepDraft {self.number}: {len(self.counts)} rows, {self.tokens_left} tokens left>"
