"""A step's rows are cut into parts that hold the same tokens, in an order in which they can be computed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu.ranks.micro_batches import LEAST_TOKENS, micro_batches
from protocol.ids import Slot
from protocol.lora import LoraId
from protocol.step import Row


def rows_of(*sizes: int) -> list[Row]:
    return [Row(Slot(slot), 7 * slot, list(range(size)), [slot], True) for slot, size in enumerate(sizes)]


def sizes(batches: list) -> list[list[int]]:
    return [[len(row.token_ids) for row in batch.rows] for batch in batches]


def test_a_long_prompt_is_cut_into_as_many_parts_as_there_are_stages():
    batches = micro_batches(rows_of(200), [], 4)
    assert sizes(batches) == [[50], [50], [50], [50]]
    assert [batch.rows[0].start for batch in batches] == [0, 50, 100, 150]
    assert [batch.rows[0].sample for batch in batches] == [False, False, False, True]


def test_few_tokens_stay_together():
    assert sizes(micro_batches(rows_of(*[1] * (2 * LEAST_TOKENS - 1)), [], 3)) == [[1] * (2 * LEAST_TOKENS - 1)]
    assert sizes(micro_batches(rows_of(*[1] * 2 * LEAST_TOKENS), [], 3)) == [[1] * LEAST_TOKENS] * 2


def test_short_rows_are_not_cut():
    short = LEAST_TOKENS - 1
    assert sizes(micro_batches(rows_of(short - 1, short, 3), [], 2)) == [[short - 1, short], [3]]


def test_one_stage_has_all_rows_with_their_adapters():
    [batch] = micro_batches(rows_of(40, 1), [LoraId(5), LoraId(0)], 1)
    assert (batch.rows, batch.lora_ids) == (rows_of(40, 1), [5, 0])


@given(st.lists(st.integers(1, 90), min_size=1, max_size=40), st.integers(1, 6), st.booleans())
def test_every_token_is_in_one_part_with_its_row_s_adapter_and_after_those_before_it(lengths, stages, is_adapted):
    rows = rows_of(*lengths)
    batches = micro_batches(rows, [LoraId(100 + row.slot) for row in rows] if is_adapted else [], stages)
    assert 1 <= len(batches) <= stages
    assert all(batch.rows for batch in batches)
    pieces = [row for batch in batches for row in batch.rows]
    assert [row.slot for row in pieces] == sorted(row.slot for row in pieces)
    for row in rows:
        mine = [piece for piece in pieces if piece.slot == row.slot]
        assert [token for piece in mine for token in piece.token_ids] == row.token_ids
        assert [piece.start for piece in mine] == [
            row.start + sum(len(before.token_ids) for before in mine[:index]) for index in range(len(mine))
        ]
        assert [piece.sample for piece in mine] == [False] * (len(mine) - 1) + [True]
    for batch in batches:
        assert len({row.slot for row in batch.rows}) == len(batch.rows)
        expected = [100 + row.slot for row in batch.rows] if is_adapted else []
        assert batch.lora_ids == expected
