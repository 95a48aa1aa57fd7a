"""The few statistics that the tables show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import attrs


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that `share` of all values do not exceed."""
    ranked = sorted(values)
    return ranked[max(math.ceil(share * len(ranked)) - 1, 0)]


@attrs.frozen
class Spread:
    """One figure over all rounds."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))
