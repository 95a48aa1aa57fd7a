"""What one measured number is. Used by the tables of scripts/bench."""

from __future__ import annotations

import attrs


@attrs.frozen
class Figure:
    """One row of a table."""

    title: str
    unit: str
    more_is_better: bool

    def times_better(self, ours: float, theirs: float) -> float | None:
        """How many times better ours is (above 1: better); None if one of them is nothing."""
        if not ours or not theirs:
            return None
        return ours / theirs if self.more_is_better else theirs / ours
