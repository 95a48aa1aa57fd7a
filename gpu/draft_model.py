"""A small model that guesses what the served one will say next. Used by gpu/torch_runner, after each step's sampling.

It has a KV pool and blocks of its own, and follows the sequences at its own pace: what it has not computed of one (a
prompt, what was found in cached blocks, what was recomputed after a preemption) it catches up with in chunks, and until
then it says nothing about it. Its guesses are checked, so that nothing here can change a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch

from gpu.kv_pool import KvPoolSize
from gpu.model import Model
from gpu.sequence_slot import SequenceSlot
from protocol.ids import Slot
from protocol.step import Row

CATCH_UP_TOKENS = 256
"""Most tokens that a step computes of sequences that it lags behind: those that it keeps up with wait for that."""
KEPT_UP = 2
"""Tokens that it has not computed after a step whose guesses were all right: the last of them, and the one after it."""


@attrs.define(eq=False)
class Follower:
    """What the draft model has of a sequence: `num_computed` of its tokens, and guesses at those after them."""

    block_table: list[int] = attrs.field(factory=list)
    num_computed: int = 0
    ahead: list[int] = attrs.field(factory=list)

    def missing(self, sequence: SequenceSlot) -> list[int]:
        """The tokens that are yet to be computed, at least the last one: what comes after it is asked for.

        Guesses that have come true are computed tokens by now; the others are computed over.
        """
        tokens = _tokens_from(sequence, self.num_computed)
        num_right = 0
        for guess, token_id in zip(self.ahead, tokens[:-1], strict=False):
            if guess != token_id:
                break
            num_right += 1
        self.num_computed += num_right
        self.ahead = []
        return tokens[num_right:]


@attrs.define(eq=False)
class Pursuit:
    """A sequence in one call of `draft`: the tokens that are not computed yet, and how many to guess after them."""

    slot: Slot
    follower: Follower
    missing: list[int]
    room: int
    drafts: list[int] = attrs.field(factory=list)

    def row(self, token_ids: list[int]) -> Row:
        return Row(self.slot, self.follower.num_computed, token_ids, self.follower.block_table, True)


class DraftModel:
    """Drafts greedily, whatever the request samples with."""

    def __init__(
        self, model: Model, size: KvPoolSize, num_drafts: int, target_vocab_size: int, max_length: int
    ) -> None:
        """`num_drafts` per sequence and step, of tokens below `target_vocab_size`, for sequences of at most
        `max_length` tokens (and no longer than this model goes)."""
        self._model = model
        self._size = size
        self._num_drafts = num_drafts
        self._vocab_size = min(model.vocab_size, target_vocab_size)
        self._max_length = min(max_length, size.max_model_len)
        self._free = list(reversed(range(size.num_blocks)))
        self._followers: dict[Slot, Follower] = {}

    @property
    def weights_bytes(self) -> int:
        return self._model.weights_bytes

    @property
    def kv_cache_bytes(self) -> int:
        return self._size.num_bytes

    @property
    def num_blocks(self) -> int:
        return self._size.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def free(self, slot: Slot) -> None:
        """The slot's sequence is gone, or is to be computed again."""
        follower = self._followers.pop(slot, None)
        if follower is not None:
            self._free += follower.block_table

    def draft(self, sequences: Mapping[Slot, SequenceSlot]) -> dict[Slot, list[int]]:
        """Guesses at what comes after each sequence's last token; nothing for those that it has not caught up with."""
        pursuits = [p for slot, sequence in sequences.items() if (p := self._pursue(slot, sequence)) is not None]
        rows: list[Row] = []
        caught_up: dict[int, Pursuit] = {}
        left = CATCH_UP_TOKENS
        for pursuit in sorted(pursuits, key=lambda pursuit: len(pursuit.missing)):
            count = min(len(pursuit.missing), KEPT_UP + left)
            if not self._make_room(pursuit.follower, pursuit.follower.num_computed + count):
                continue
            left -= max(0, count - KEPT_UP)
            if count == len(pursuit.missing):
                caught_up[len(rows)] = pursuit
            rows.append(pursuit.row(pursuit.missing[:count]))
            pursuit.follower.num_computed += count
        if not rows:
            return {}
        computed = self._model.compute(rows)
        lasts = [computed.first_token[index] + len(rows[index].token_ids) - 1 for index in caught_up]
        going_on = list(caught_up.values())
        if going_on:
            self._guess(going_on, computed.hidden[lasts])
        while going_on := [pursuit for pursuit in going_on if self._goes_on(pursuit)]:
            # Its last guess is computed at the place where it stands if it is right.
            rows = [_row_of_guess(pursuit) for pursuit in going_on]
            computed = self._model.compute(rows)
            for pursuit in going_on:
                pursuit.follower.ahead.append(pursuit.drafts[-1])
            self._guess(going_on, computed.hidden[computed.first_token])
        return {pursuit.slot: pursuit.drafts for pursuit in caught_up.values()}

    @property
    def model(self) -> Model:
        return self._model

    def release_kv(self) -> None:
        """Give back its KV pool's memory: it has caught up with nobody any more."""
        self._model.release_kv()
        self._followers = {}
        self._free = list(reversed(range(self._size.num_blocks)))

    def close(self) -> None:
        """Give back memory and threads. Idempotent."""
        self._model.close()
        self._followers = {}

    def _pursue(self, slot: Slot, sequence: SequenceSlot) -> Pursuit | None:
        """None if it needs no guesses, or can have none: too long, about to end, or with tokens unknown here."""
        num_output = len(sequence.output_token_ids)
        room = min(
            self._num_drafts,
            sequence.params.max_tokens - num_output - 1,
            self._max_length - len(sequence.prompt_token_ids) - num_output - 1,
        )
        if room < 1:
            return None
        follower = self._followers.setdefault(slot, Follower())
        missing = follower.missing(sequence)
        return Pursuit(slot, follower, missing, room) if max(missing) < self._model.vocab_size else None

    def _goes_on(self, pursuit: Pursuit) -> bool:
        follower = pursuit.follower
        end = follower.num_computed + len(pursuit.drafts)
        return len(pursuit.drafts) < pursuit.room and self._make_room(follower, end)

    def _make_room(self, follower: Follower, end: int) -> bool:
        """Blocks for the first `end` tokens, or nothing if too few are free."""
        missing = -(-end // self._size.block_size) - len(follower.block_table)
        if missing > len(self._free):
            return False
        # A new list: rows hold on to the old one.
        follower.block_table = follower.block_table + [self._free.pop() for _ in range(missing)]
        return True

    def _guess(self, pursuits: Sequence[Pursuit], hidden: torch.Tensor) -> None:
        """One more guess for each, after what its row of `hidden` [pursuits, hidden size] stands for."""
        best = self._model.logits(hidden)[:, : self._vocab_size].argmax(dim=1)
        for pursuit, token_id in zip(pursuits, best.tolist(), strict=True):
            pursuit.drafts.append(token_id)


def _tokens_from(sequence: SequenceSlot, start: int) -> list[int]:
    num_prompt = len(sequence.prompt_token_ids)
    if start >= num_prompt:
        return sequence.output_token_ids[start - num_prompt :]
    return sequence.prompt_token_ids[start:] + sequence.output_token_ids


def _row_of_guess(pursuit: Pursuit) -> Row:
    start = pursuit.follower.num_computed + len(pursuit.drafts) - 1
    return Row(pursuit.slot, start, pursuit.drafts[-1:], pursuit.follower.block_table, True)
