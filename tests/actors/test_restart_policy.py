from __future__ import annotations

from actors.restart_policy import MAX_DELAY, RestartPolicy


def test_delays_grow_with_deaths_that_come_close_together():
    policy = RestartPolicy(max_deaths=20)
    delays = [policy.died(float(second)) for second in range(10)]

    assert delays[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(delays) == MAX_DELAY


def test_the_fourth_death_within_the_window_is_the_last():
    policy = RestartPolicy(max_deaths=4, window=60)

    assert [policy.died(now) is None for now in (0.0, 10.0, 20.0, 59.9)] == [False, False, False, True]


def test_deaths_that_are_far_apart_go_on_for_ever():
    policy = RestartPolicy(max_deaths=4, window=60)

    assert [policy.died(20.1 * n) for n in range(100)][5:] == [0.2] * 95
