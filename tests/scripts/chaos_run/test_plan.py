"""What is injected when: seeded, varied, and never so much that the service gives up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from actors.restart_policy import RestartPolicy
from scripts.chaos_run.plan import KINDS, SURVIVED_SECONDS, plan


def test_the_same_seed_gives_the_same_plan_and_another_one_another():
    assert plan(1, 300, 8) == plan(1, 300, 8)
    assert plan(1, 300, 8) != plan(2, 300, 8)


@pytest.mark.parametrize("seed", range(20))
def test_no_actor_dies_more_often_than_the_service_bears(seed):
    policies = {victim: RestartPolicy() for victim in ("engine", "output", "weights", "grammar", "standby", "kv")}
    deaths = sorted((when, who) for one in plan(seed, 900, 8) for who, when in one.deaths())

    assert all(policies[who].died(when) is not None for when, who in deaths)


def test_in_some_minutes_every_kind_has_its_turn_and_stops_are_both_short_and_long():
    planned = plan(5, 900, 8)
    times = Counter(one.kind.name for one in planned)

    assert set(times) == {kind.name for kind in KINDS}
    stops = [one.seconds for one in planned if one.kind.deed == "stop" and "server" not in one.kind.victims]
    assert min(stops) < SURVIVED_SECONDS < 12 <= max(stops) <= 60
    assert all(one.at + one.seconds <= 900 for one in planned)


def test_a_victim_is_given_time_to_come_back():
    planned = [one for one in plan(6, 900, 10) if "engine" in one.kind.victims]

    assert all(later.at - (earlier.at + earlier.seconds) >= 10 for earlier, later in pairwise(planned))
