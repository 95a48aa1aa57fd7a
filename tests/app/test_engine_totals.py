"""Counters that never go down, whatever engines do."""

from __future__ import annotations

from app.engine_totals import EngineTotals
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex, Epoch

FIRST, SECOND = EngineIndex(0), EngineIndex(1)


def test_a_new_engine_counts_on_where_the_one_before_it_ended():
    totals = EngineTotals()
    totals.attach(FIRST, Epoch(1), 100)
    totals.take(FIRST, EngineStats(3, 2, 50, 100, num_steps=7, step_tokens=9, steps_by_tokens=[1, 2]))
    totals.attach(FIRST, Epoch(2), 90)
    fresh = totals.reading([FIRST])
    totals.take(FIRST, EngineStats(1, 0, 5, 90, num_steps=4, step_tokens=1, steps_by_tokens=[0, 1]))

    assert fresh == EngineStats(kv_blocks_total=90, num_steps=7, step_tokens=9, steps_by_tokens=[1, 2])
    assert totals.reading([FIRST]) == EngineStats(1, 0, 5, 90, num_steps=11, step_tokens=10, steps_by_tokens=[1, 3])


def test_a_dead_engine_keeps_its_counters_and_loses_its_gauges():
    totals = EngineTotals()
    totals.attach(FIRST, Epoch(1), 100)
    totals.take(FIRST, EngineStats(3, 2, 50, 100, num_steps=7))

    assert totals.reading([]) == EngineStats(num_steps=7)


def test_an_engine_that_is_heard_again_goes_on_counting():
    totals = EngineTotals()
    totals.attach(FIRST, Epoch(1), 100)
    totals.take(FIRST, EngineStats(3, 2, 50, 100, num_steps=7))
    totals.attach(FIRST, Epoch(1), 100)

    assert totals.reading([FIRST]) == EngineStats(kv_blocks_total=100, num_steps=7)


def test_what_only_heartbeats_tell_stays_between_them():
    totals = EngineTotals()
    totals.attach(FIRST, Epoch(1), 100)
    totals.take(FIRST, EngineStats(num_steps=7, step_tokens=9, steps_by_tokens=[1, 2]))
    totals.take(FIRST, EngineStats(num_steps=8))

    assert totals.reading([FIRST]) == EngineStats(num_steps=8, step_tokens=9, steps_by_tokens=[1, 2])


def test_several_engines_are_added_up():
    totals = EngineTotals()
    for index in (FIRST, SECOND):
        totals.attach(index, Epoch(1), 100)
    totals.take(FIRST, EngineStats(1, 2, 3, 100, spec_decode_accepted_by_position=[1], steps_by_tokens=[1]))
    totals.take(SECOND, EngineStats(4, 5, 6, 100, spec_decode_accepted_by_position=[2, 1], steps_by_tokens=[1]))

    assert totals.reading([FIRST, SECOND]) == EngineStats(
        5, 7, 9, 200, spec_decode_accepted_by_position=[3, 1], steps_by_tokens=[2]
    )
