"""Which graph a step runs in, and that padding touches nothing that belongs to a sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.batch import flatten_rows
from gpu.graph_plan import GraphKey, GraphPlan
from protocol.ids import Slot
from protocol.step import Row

SPARE = 999


def decode(*starts: int, block_size: int = 4) -> list[Row]:
    rows, first = [], 0
    for index, start in enumerate(starts):
        count = start // block_size + 2  # one more than is needed
        rows.append(Row(Slot(index), start, [index + 1], list(range(first, first + count)), True))
        first += count
    return rows


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20]), (3, [1, 2, 3])]
)
def test_numbers_of_rows_end_with_the_most_that_may_run(most, sizes):
    assert GraphPlan(most, 64, 4, SPARE).rows == sizes


@pytest.mark.parametrize(("length", "widths"), [(4, [1]), (5, [1, 2]), (17, [1, 2, 4, 5]), (64, [1, 2, 4, 8, 16])])
def test_widths_double_up_to_the_longest_sequence(length, widths):
    assert GraphPlan(8, length, 4, SPARE).widths == widths


@given(st.lists(st.integers(0, 79), min_size=1, max_size=24))
def test_the_smallest_graph_that_holds_the_step_is_taken(starts):
    plan = GraphPlan(20, 80, 4, SPARE)
    key = plan.key_for(decode(*starts))
    width = max(starts) // 4 + 1
    if len(starts) > 20:
        assert key is None
        return
    assert key == GraphKey(
        min(size for size in plan.rows if size >= len(starts)), min(size for size in plan.widths if size >= width)
    )


def test_steps_that_no_graph_holds_have_none():
    plan = GraphPlan(4, 16, 4, SPARE)
    assert plan.key_for([]) is None
    assert plan.key_for([*decode(3), Row(Slot(1), 0, [1, 2], [9], False)]) is None
    assert plan.key_for(decode(16)) is None
    assert plan.key_for(decode(0, 0, 0, 0, 0)) is None


def test_graphs_stay_below_the_most_blocks():
    plan = GraphPlan(8, 64, 4, SPARE, max_blocks=16)
    assert plan.largest == GraphKey(8, 2)
    assert plan.key_for(decode(63)) == GraphKey(1, 16)
    assert plan.key_for(decode(63, 0)) is None
    assert GraphPlan(8, 64, 4, SPARE).largest == GraphKey(8, 16)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=11), st.sampled_from([1, 4, 16]))
def test_inputs_say_of_each_row_what_the_batch_says_and_padding_stays_in_the_spare_block(starts, block_size):
    rows = decode(*starts, block_size=block_size)
    plan = GraphPlan(11, 80, block_size, SPARE)
    key = plan.key_for(rows)
    inputs = plan.inputs(key, rows)
    flat, real = flatten_rows(rows, block_size), len(rows)
    by_slot = sorted(zip(flat.slots, flat.token_ids, flat.positions, strict=True))
    assert sorted(zip(inputs.slots[:real], inputs.token_ids, inputs.positions, strict=False)) == by_slot
    assert sorted(block for block in inputs.begun_blocks if block != SPARE) == sorted(flat.begun_blocks)
    assert inputs.lengths[:real] == [start + 1 for start in starts]
    for index, row in enumerate(rows):
        table = inputs.blocks[index * key.width : (index + 1) * key.width]
        used = row.start // block_size + 1
        assert table == row.block_table[:used] + [SPARE] * (key.width - used)
    padding = key.rows - real
    assert inputs.slots[real:] == [SPARE * block_size] * padding
    assert inputs.begun_blocks[real:] == [SPARE] * padding
    assert inputs.lengths[real:] == [1] * padding
    assert inputs.blocks[real * key.width :] == [SPARE] * (padding * key.width)
    assert all(len(part) == key.rows for part in (inputs.token_ids, inputs.positions, inputs.slots, inputs.lengths))
