"""A piece is found repeated exactly where it stands at the end, as often as asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.engine.repetition import repeats_itself
from protocol.sampling import RepetitionDetection


@pytest.mark.parametrize(
    ("token_ids", "wanted", "found"),
    [
        ([1, 1], (1, 1, 2), True),
        ([1], (1, 1, 2), False),
        ([1, 2, 1, 2, 1, 2], (4, 1, 3), True),
        ([1, 2, 1, 2, 1, 2], (4, 1, 4), False),
        ([1, 2, 1, 2, 1, 2, 3], (4, 1, 3), False),
        ([3, 3, 3, 3], (4, 2, 2), True),
        ([3, 3, 3], (4, 2, 2), False),
    ],
)
def test_a_piece_counts_by_size_and_number(token_ids: list[int], wanted: tuple[int, int, int], found: bool) -> None:
    assert repeats_itself(token_ids, RepetitionDetection(*wanted)) is found


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 5), st.integers(2, 4))
def test_it_is_what_comparing_piece_by_piece_gives(token_ids: list[int], most: int, least: int, count: int) -> None:
    expected = any(
        len(token_ids) >= size * count
        and all(token_ids[-size:] == token_ids[len(token_ids) - size * (n + 1) :][:size] for n in range(count))
        for size in range(least, most + 1)
    )
    assert repeats_itself(token_ids, RepetitionDetection(most, least, count)) is expected
