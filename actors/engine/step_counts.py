"""What steps consisted of, counted by actors/engine/engine_counters. Too long for every output: heartbeats tell it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import final

from protocol.engine_stats import STEP_TOKENS_BOUNDS


@final
class StepCounts:
    """Totals since the engine started."""

    def __init__(self) -> None:
        self.by_num_tokens = [0] * (len(STEP_TOKENS_BOUNDS) + 1)
        """Steps by the smallest of STEP_TOKENS_BOUNDS that is not below their number of tokens; the last are above."""
        self.num_tokens = 0
        self.accepted_by_position: list[int] = []
        """How often the first, the second, … guess of a row was right."""

    def note(self, num_tokens: int, num_accepted: Iterable[int]) -> None:
        """A step was committed; `num_accepted` has one number for each of its rows that may have had guesses."""
        self.by_num_tokens[bisect_left(STEP_TOKENS_BOUNDS, num_tokens)] += 1
        self.num_tokens += num_tokens
        for number in num_accepted:
            if number > len(self.accepted_by_position):
                self.accepted_by_position += [0] * (number - len(self.accepted_by_position))
            for position in range(number):
                self.accepted_by_position[position] += 1
