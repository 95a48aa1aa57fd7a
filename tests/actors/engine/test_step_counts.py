"""What the engine tells of its steps and of how a request fared."""

from __future__ import annotations

from pathlib import Path

from actors.engine.step_counts import StepCounts
from protocol.engine_stats import STEP_TOKENS_BOUNDS
from tests.helpers.scheduling import DRAFTS, Bench, a_config, a_request


def test_a_step_counts_below_the_smallest_bound_that_is_not_below_its_tokens():
    counts = StepCounts()
    for num_tokens in (1, 8, 9, 16384, 16385):
        counts.note(num_tokens, ())

    expected = [0] * (len(STEP_TOKENS_BOUNDS) + 1)
    for index in (0, 1, 2, -2, -1):
        expected[index] = 1
    assert counts.by_num_tokens == expected
    assert counts.num_tokens == 1 + 8 + 9 + 16384 + 16385


def test_right_guesses_count_by_their_positions():
    counts = StepCounts()
    counts.note(4, [2, 0, 3])
    counts.note(1, [1])

    assert counts.accepted_by_position == [3, 2, 1]


def test_every_token_that_is_computed_is_one_of_a_step(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=8))
    bench.add(a_request("a", range(3, 23), max_tokens=4))
    bench.run()
    stats = bench.scheduler.stats(whole=True)

    assert stats.step_tokens == 20 + 3  # the last token is told, and nothing is computed of it
    assert sum(stats.steps_by_tokens) == stats.num_steps
    assert bench.scheduler.stats().steps_by_tokens == []


def test_guesses_are_told_by_position_as_they_are_told_together(tiny: Path):
    bench = Bench(tiny, a_config(), speculative=DRAFTS)
    bench.add(a_request("a", range(3, 9), max_tokens=30))
    bench.run()
    stats = bench.scheduler.stats(whole=True)

    assert sum(stats.spec_decode_accepted_by_position) == stats.spec_decode_num_accepted_tokens > 0


def test_the_first_and_the_last_output_tell_when_their_sequence_was_first_scheduled(tiny: Path):
    bench = Bench(tiny, a_config())
    scheduler = bench.scheduler
    scheduler.add(a_request("a", max_tokens=3))
    told = []
    for now in (5.0, 6.0, 7.0):
        plan = scheduler.schedule(now)
        assert plan is not None
        told += [output for _, output in scheduler.commit(plan, bench.compute(plan))]

    assert [output.scheduled_at for output in told] == [5.0, None, 5.0]


def test_each_output_tells_how_often_its_sequence_was_preempted(tiny: Path):
    bench = Bench(tiny, a_config(num_blocks=7, max_num_batched_tokens=8))
    for index, name in enumerate("abc"):
        bench.add(a_request(name, range(3 + index, 9 + index), max_tokens=14))
    last: dict[str, int] = {}
    while (plan := bench.schedule()) is not None:
        for _, output in bench.scheduler.commit(plan, bench.compute(plan)):
            last[output.request_id] = output.num_preemptions

    assert sum(last.values()) == bench.scheduler.stats().num_preemptions > 0
