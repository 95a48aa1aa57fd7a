"""So many at once, and so many a second: what a burst has used up comes back with time."""

from __future__ import annotations

from app.allowance import Allowance


def test_a_burst_is_allowed_and_the_next_one_is_not() -> None:
    allowance = Allowance(10, 2.0, now=0.0)
    assert allowance.spend(10, 0.0)
    assert not allowance.spend(1, 0.0)


def test_it_comes_back_at_its_rate_and_never_beyond_the_burst() -> None:
    allowance = Allowance(10, 2.0, now=0.0)
    assert allowance.spend(10, 0.0)
    assert allowance.spend(2, 1.0)
    assert not allowance.spend(1, 1.0)
    assert allowance.spend(10, 1000.0)
    assert not allowance.spend(1, 1000.0)


def test_what_was_spent_beyond_has_to_be_earned_first() -> None:
    allowance = Allowance(10, 2.0, now=0.0)
    assert not allowance.spend(20, 0.0)
    assert not allowance.spend(0, 4.0)
    assert allowance.spend(0, 5.0)


def test_more_may_be_given_and_still_not_beyond_the_burst() -> None:
    allowance = Allowance(10, 0.0, now=0.0)
    assert allowance.spend(5, 0.0)
    allowance.give(100)
    assert allowance.spend(10, 0.0)
    assert not allowance.spend(1, 0.0)
