"""That the numbers arrive, in one piece of memory, and are not overwritten by the next step's."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu.staging import FIRST_BYTES, Staging, num_bytes

CPU = torch.device("cpu")
LISTS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=4)


@given(LISTS, LISTS)
def test_lists_arrive_with_their_types(longs, ints):
    placed_longs, placed_ints = Staging(CPU).place(longs, ints)
    assert [one.tolist() for one in placed_longs] == longs
    assert [one.tolist() for one in placed_ints] == ints
    assert all(one.dtype == torch.int64 for one in placed_longs)
    assert all(one.dtype == torch.int32 for one in placed_ints)


def test_a_step_keeps_its_numbers_when_the_next_one_is_placed():
    staging = Staging(CPU)
    (first,), _ = staging.place([[1, 2, 3]], [])
    staging.place([[4, 5, 6]], [])
    assert first.tolist() == [1, 2, 3]


def test_fixed_memory_is_filled_in_place():
    staging = Staging(CPU)
    memory = torch.zeros(num_bytes([2], [3]), dtype=torch.uint8)
    (longs,), (ints,) = staging.place([[1, 2]], [[3, 4, 5]], into=memory)
    staging.place([[7, 8]], [[9, 10, 11]], into=memory)
    assert (longs.tolist(), ints.tolist()) == ([7, 8], [9, 10, 11])


def test_more_than_ever_before_is_taken():
    many = list(range(FIRST_BYTES))
    (found,), _ = Staging(CPU).place([many], [])
    assert found.tolist() == many
