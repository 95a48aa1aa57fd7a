"""A step plan's rows as the kernels take them: flat arrays behind one Step record. Used by gpu/native_model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from gpu.kernels.structs import Step
from protocol.step import Row

TASK_TOKENS = 16
"""Queries of a prefill that one thread takes at a time."""


ADAPTED_TOKENS = 64
"""That one thread takes at a time to an adapter's low rank."""


class AdaptedRows:
    """Which tokens have which adapter, in stretches."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """Of each: place, first token, tokens."""

    def add(self, place: int, first: int, count: int) -> None:
        """Tokens from `first` on, behind all those before."""
        if self.numbers and self.numbers[-3] == place and self.numbers[-2] + self.numbers[-1] == first:
            taken = min(count, ADAPTED_TOKENS - self.numbers[-1])
            self.numbers[-1] += taken
            first, count = first + taken, count - taken
        for begin in range(first, first + count, ADAPTED_TOKENS):
            self.numbers += (place, begin, min(ADAPTED_TOKENS, first + count - begin))


class NativeBatch:
    """One step: the record, and the arrays that it points to."""

    def __init__(
        self, rows: Sequence[Row], block_size: int, vocab_size: int, num_blocks: int, places: Sequence[int] = ()
    ) -> None:
        """`places` says of each row where its adapter is, -1 for none; it is empty if no row has one.

        Nothing beyond the vocabulary or the pool gets through: the kernels look at no bounds."""
        token_ids: list[int] = []
        spans: list[int] = []  # first token, tokens, start, first block
        span_of: list[int] = []
        blocks: list[int] = []
        tasks: list[int] = []  # span, first token within it, tokens
        self.first_token = [0] * len(rows)
        adapted = AdaptedRows()
        # Those of one adapter beside each other, whose tokens are then multiplied together.
        order = sorted(range(len(rows)), key=places.__getitem__) if places else range(len(rows))
        for index, number in enumerate(order):
            row = rows[number]
            count = len(row.token_ids)
            end = row.start + count
            assert row.token_ids, f"slot {row.slot} has no tokens to compute"
            assert len(row.block_table) * block_size >= end, f"slot {row.slot}'s blocks do not cover {end} positions"
            self.first_token[number] = len(token_ids)
            if places and (place := places[number]) >= 0:
                adapted.add(place, len(token_ids), count)
            spans += (len(token_ids), count, row.start, len(blocks))
            token_ids += row.token_ids
            span_of += [index] * count
            blocks += row.block_table[: -(-end // block_size)]
            for first in range(0, count, TASK_TOKENS):
                tasks += (index, first, min(TASK_TOKENS, count - first))
        assert min(token_ids) >= 0, f"token {min(token_ids)}"
        assert max(token_ids) < vocab_size, f"token {max(token_ids)} of {vocab_size}"
        assert min(blocks) >= 0, f"block {min(blocks)}"
        assert max(blocks) < num_blocks, f"block {max(blocks)} of {num_blocks}"
        self.tokens = len(token_ids)
        self.arrays = [
            np.array(numbers, dtype=np.int32) for numbers in (token_ids, spans, span_of, blocks, tasks, adapted.numbers)
        ]
        addresses = [array.ctypes.data for array in self.arrays]
        self.step = Step(self.tokens, len(rows), len(tasks) // 3, block_size, *addresses, len(adapted.numbers) // 3)


def step_of(tokens: int) -> Step:
    """A step for operations that look at rows of numbers only."""
    return Step(tokens=tokens)


assert ctypes.sizeof(Step) == 72
