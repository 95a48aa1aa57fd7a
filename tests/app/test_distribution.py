from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.distribution import Distribution

BOUNDS = (0.1, 1.0, 10.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5))))
def test_each_bound_counts_the_values_that_are_not_above_it(values):
    distribution = Distribution(BOUNDS)
    for value, times in values:
        distribution.observe(value, times)

    expected = [(bound, sum(times for value, times in values if value <= bound)) for bound in (*BOUNDS, math.inf)]
    assert list(distribution.cumulative()) == expected
    assert math.isclose(distribution.total, sum(value * times for value, times in values), abs_tol=1e-9)
