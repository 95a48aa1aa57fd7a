"""How much of a comparison fits into the time that there is. Pure: moments are handed in."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Budget:
    """Until when everything has to be done, on the clock that its callers use."""

    ends_at: float

    def turn_ends_at(self, now: float, turns_left: int) -> float:
        """An equal part of what is left, for the first of so many turns that every server must get."""
        return now + max(0.0, self.ends_at - now) / turns_left

    def has_round(self, now: float, rounds_so_far: Sequence[float]) -> bool:
        """Whether another round fits, if it takes as long as the longest one did. The first one always does."""
        return not rounds_so_far or now + max(rounds_so_far) <= self.ends_at


def level_seconds(before: tuple[int, float], requests: int) -> float:
    """What a level will take at most, from the requests and seconds of the one before: with more at once no server
    gets through fewer in a second."""
    return before[1] * requests / max(before[0], 1)
