"""How often values fell where, as a Prometheus histogram tells it. Kept by app/request_metrics.py for every token."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate


class Distribution:
    """Counts values by the smallest bound that is not below them."""

    def __init__(self, bounds: Sequence[float], counts: Sequence[int] = (), total: float = 0.0) -> None:
        """`counts`: of values that were counted elsewhere by the same bounds and infinity."""
        self._bounds = (*bounds, math.inf)
        self._counts = list(counts) or [0] * len(self._bounds)
        assert len(self._counts) == len(self._bounds), f"{len(counts)} counts for {len(bounds)} bounds"
        self.total = total
        """The sum of all values."""

    def observe(self, value: float, times: int = 1) -> None:
        """The same value so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, infinity last, and how many values are not above it."""
        return zip(self._bounds, accumulate(self._counts), strict=True)
