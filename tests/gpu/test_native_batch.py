"""A step as the kernels take it, and what must not get through to them."""

from __future__ import annotations

import pytest

from gpu.native_batch import ADAPTED_TOKENS, TASK_TOKENS, NativeBatch
from protocol.ids import Slot
from protocol.step import Row


def row(start: int, token_ids: list[int], blocks: list[int]) -> Row:
    return Row(Slot(0), start, token_ids, blocks, True)


def test_rows_lie_one_after_the_other_and_long_ones_are_parted():
    batch = NativeBatch([row(20, [1], [0, 1]), row(0, [2] * 40, [2, 3, 4, 9])], 16, 10, 10)
    token_ids, spans, span_of, blocks, tasks, adapted = (array.tolist() for array in batch.arrays)
    assert token_ids == [1] + [2] * 40
    assert batch.first_token == [0, 1]
    assert spans == [0, 1, 20, 0, 1, 40, 0, 2]
    assert span_of == [0] + [1] * 40
    assert blocks == [0, 1, 2, 3, 4]  # as many as the tokens need
    assert tasks == [0, 0, 1, 1, 0, TASK_TOKENS, 1, TASK_TOKENS, TASK_TOKENS, 1, 2 * TASK_TOKENS, 8]
    assert adapted == []


def test_rows_of_one_adapter_lie_beside_each_other_in_stretches_of_bounded_length():
    rows = [row(0, [1] * 70, list(range(5))), row(0, [2], [5]), row(0, [3] * 3, [6])]
    batch = NativeBatch(rows, 16, 10, 10, places=[1, -1, 1])
    token_ids, *_, adapted = (array.tolist() for array in batch.arrays)
    assert token_ids == [2] + [1] * 70 + [3] * 3
    assert batch.first_token == [1, 0, 71]
    assert adapted == [1, 1, ADAPTED_TOKENS, 1, 1 + ADAPTED_TOKENS, 70 + 3 - ADAPTED_TOKENS]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (row(0, [-1], [0]), "token -1"),
        (row(0, [10], [0]), "token 10 of 10"),
        (row(0, [1], [-1]), "block -1"),
        (row(0, [1], [8]), "block 8 of 8"),
        (row(16, [1], [0]), "do not cover 17 positions"),
        (row(0, [], [0]), "no tokens"),
    ],
)
def test_nothing_out_of_bounds_gets_through(broken, reason):
    with pytest.raises(AssertionError, match=reason):
        NativeBatch([row(0, [3], [1]), broken], 16, 10, 8)
