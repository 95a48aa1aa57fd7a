"""What the dummy runner knows of its slots, and the rules that a plan has to keep; else the scheduler has a bug."""

from __future__ import annotations

from typing import final

import msgspec

from gpu.fake_pooling import FakePooling
from protocol.ids import Slot
from protocol.sampling import SamplingParams
from protocol.spec import EngineFacts
from protocol.step import PENDING, NewSequence, Row


class PlanError(ValueError):
    """The plan contradicts the plans before it, or the runner's sizes."""


@final
class FakeSlot:
    """A sequence in its slot."""

    def __init__(self, new: NewSequence, hidden_size: int) -> None:
        self.request_id = new.request_id
        self.params: SamplingParams = new.sampling_params
        self.prompt = list(new.prompt_token_ids)
        self.output = list(new.output_token_ids)
        self.num_computed = new.num_computed_tokens
        self.begins_with_blocks = new.num_computed_tokens > 0
        """Until its first row."""
        self.lora_id = new.lora_id
        self.pooling = None if new.pooling is None else FakePooling(new.pooling, len(self.prompt), hidden_size)
        self.sampled_in: int | None = None
        """The step of its newest token."""
        self.is_void = False
        """It failed to sample: a plan may go on as if it had not, and its results mean nothing."""
        self.block_table: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    def tokens_from(self, start: int, end: int) -> list[int]:
        return [*self.prompt, *self.output][start:end]

    def __repr__(self) -> str:
        return f"<FakeSlot {self.request_id}: {self.num_computed} of {self.num_tokens} tokens, {self.block_table}>"


@final
class FakeSlots:
    """Checks every part of a plan before it is done. Each method raises PlanError for what must not be."""

    def __init__(self, max_num_seqs: int, facts: EngineFacts) -> None:
        self._max_num_seqs = max_num_seqs
        self._num_blocks = facts.num_blocks
        self._block_size = facts.block_size
        self._vocab_size = facts.vocab_size
        self._hidden_size = facts.hidden_size
        self._slots: dict[Slot, FakeSlot] = {}
        self._owners: dict[int, set[Slot]] = {}

    def __getitem__(self, slot: Slot) -> FakeSlot:
        return self._slots[slot]

    def free(self, slot: Slot) -> None:
        _require(slot in self._slots, f"slot {slot} is freed, but nobody has it")
        for block in self._slots.pop(slot).block_table:
            self._owners[block].remove(slot)
            if not self._owners[block]:
                del self._owners[block]

    def check_unowned(self, block: int) -> None:
        """It is about to be written by nobody's row."""
        owners = self._owners.get(block, set())
        _require(not owners, f"block {block} is loaded, but is slot {min(owners, default=0)}'s")

    def open(self, new: NewSequence) -> None:
        slot = new.slot
        _require(0 <= slot < self._max_num_seqs, f"slot {slot} is not one of {self._max_num_seqs}")
        _require(
            slot not in self._slots, f"slot {slot} is given to {new.request_id}, but {self._slots.get(slot)} has it"
        )
        _require(len(new.prompt_token_ids) > 0, f"{new.request_id} has no prompt")
        for token_id in (*new.prompt_token_ids, *new.output_token_ids):
            _require(0 <= token_id < self._vocab_size, f"token {token_id} of {new.request_id} is not in the vocabulary")
        num_computed = new.num_computed_tokens
        num_tokens = len(new.prompt_token_ids) + len(new.output_token_ids)
        _require(
            0 <= num_computed < num_tokens and num_computed % self._block_size == 0,
            f"{num_computed} of {num_tokens} tokens of {new.request_id} are said to be computed",
        )
        self._slots[slot] = FakeSlot(new, self._hidden_size)

    def resolve(self, row: Row, previous_step: int) -> Row:
        """The row without PENDING, which must be the token that the slot sampled in the step before."""
        if PENDING not in row.token_ids:
            return row
        _require(row.slot in self._slots, f"slot {row.slot} has a row, but no sequence")
        held = self._slots[row.slot]
        _require(PENDING not in row.token_ids[:-1], f"a token before the last one is pending: {held}")
        _require(
            held.is_void or held.sampled_in == previous_step, f"step {previous_step} sampled no token for it: {held}"
        )
        return msgspec.structs.replace(row, token_ids=[*row.token_ids[:-1], held.tokens_from(0, held.num_tokens)[-1]])

    def check_row(self, row: Row) -> FakeSlot:
        """The row's slot, with the row's block table taken over."""
        _require(row.slot in self._slots, f"slot {row.slot} has a row, but no sequence")
        held = self._slots[row.slot]
        end = row.start + len(row.token_ids)
        _require(row.start == held.num_computed, f"row starts at {row.start}: {held}")
        _require(len(row.token_ids) > 0, f"row computes nothing: {held}")
        self._check_drafts(row, held)
        if not held.is_void:
            end_known = end - row.num_drafts
            known = held.tokens_from(row.start, end_known)
            _require(row.token_ids[: len(row.token_ids) - row.num_drafts] == known, f"row has other tokens: {held}")
            _require(not row.sample or end_known == held.num_tokens, f"row samples before its end: {held}")
        pooling = held.pooling
        _require(pooling is None or not row.sample, f"row samples what is to be pooled: {held}")
        _require(pooling is None or pooling.has_all(row.start), f"states before {row.start} are missing: {held}")
        num_bytes = (self._vocab_size + 31) // 32 * 4
        masks = [*row.draft_bitmasks, *([] if row.grammar_bitmask is None else [row.grammar_bitmask])]
        _require(all(len(mask) == num_bytes for mask in masks), f"bitmasks must have {num_bytes} bytes: {held}")
        self._take_blocks(row, held, end)
        return held

    def _check_drafts(self, row: Row, held: FakeSlot) -> None:
        num_bitmasks = 0 if row.grammar_bitmask is None else row.num_drafts
        _require(len(row.draft_bitmasks) == num_bitmasks, f"{len(row.draft_bitmasks)} draft_bitmasks: {held}")
        if row.num_drafts == 0:
            return
        _require(0 < row.num_drafts < len(row.token_ids), f"row has {row.num_drafts} drafts and no token: {held}")
        _require(row.sample, f"drafts in a row that does not sample: {held}")
        for index, token_id in enumerate(row.token_ids[-row.num_drafts :]):
            _require(0 <= token_id < self._vocab_size, f"draft {token_id} is not in the vocabulary: {held}")
            mask = row.bitmask_behind(index)
            is_allowed = mask is None or mask[token_id >> 3] >> (token_id & 7) & 1
            _require(bool(is_allowed), f"draft {token_id} is not what the grammar allows: {held}")

    def _take_blocks(self, row: Row, held: FakeSlot, end: int) -> None:
        """Blocks before the row's start, which a new sequence may have, are shared; all others have no other owner."""
        table = row.block_table
        _require(len(table) * self._block_size >= end, f"{len(table)} blocks are too few for {end} tokens: {held}")
        num_held = len(held.block_table)
        _require(table[:num_held] == held.block_table, f"the block table has become {table}: {held}")
        for index, block in enumerate(table[num_held:], num_held):
            _require(0 <= block < self._num_blocks, f"block {block} is not one of {self._num_blocks}: {held}")
            owners = self._owners.setdefault(block, set())
            is_shared = (index + 1) * self._block_size <= row.start and row.slot not in owners
            _require(is_shared or not owners, f"block {block} is also slot {min(owners, default=row.slot)}'s: {held}")
            owners.add(row.slot)
        held.block_table = list(table)

    def __repr__(self) -> str:
        return f"<FakeSlots {len(self._slots)} live, {len(self._owners)} blocks>"


def _require(is_kept: bool, violation: str) -> None:
    if not is_kept:
        raise PlanError(violation)
