"""Prompts go on beside streams that hardly notice them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.engine.chunk_budget import BURST_SECONDS, MIN_CHUNK, MOST_TIMES, ChunkBudget
from actors.engine.scheduler import Scheduler
from protocol.step import Sampled, StepPlan, StepResult
from tests.helpers.scheduling import Bench, a_config, a_request


@attrs.define
class Machine:
    """A runner that only takes time: so much for each step, for each decoding row and for each prompt token."""

    scheduler: Scheduler
    step_seconds: float
    row_seconds: float
    token_seconds: float
    noise: random.Random = attrs.field(factory=lambda: random.Random(1))
    now: float = 0.0
    durations: list[tuple[int, int, float]] = attrs.field(factory=list)
    token_times: dict[str, list[float]] = attrs.field(factory=dict)

    def step(self) -> None:
        plan = self.scheduler.schedule(now=0.0)
        assert plan is not None
        decodes = sum(len(row.token_ids) == 1 for row in plan.rows)
        prefill = sum(len(row.token_ids) for row in plan.rows) - decodes
        seconds = self.step_seconds + self.row_seconds * decodes + self.token_seconds * prefill
        seconds *= self.noise.uniform(0.95, 1.05)
        self.now += seconds
        self.durations.append((decodes, prefill, seconds))
        for _, output in self.scheduler.commit(plan, self.result(plan), seconds):
            self.token_times.setdefault(output.request_id, []).append(self.now)

    def result(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step, [Sampled(row.slot, 5) for row in plan.rows if row.sample])


def machine(**costs: float) -> Machine:
    sizes = {"num_blocks": 4000, "block_size": 16, "max_num_seqs": 16, "max_num_batched_tokens": 512}
    return Machine(Scheduler(a_config(max_model_len=4000, **sizes)), **costs)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.parametrize(
    "costs",
    [
        {"step_seconds": 0.010, "row_seconds": 0.001, "token_seconds": 0.0008},  # a small model on a CPU
        {"step_seconds": 0.008, "row_seconds": 0.0001, "token_seconds": 0.00002},  # a large one on a GPU
    ],
)
def test_streams_wait_no_more_than_a_few_times_their_step_beside_a_prompt_per_second(costs: dict):
    engine = machine(**costs)
    for index in range(8):
        engine.scheduler.add(a_request(f"stream{index}", [9, index], max_tokens=3000))
    for second in range(12):
        engine.scheduler.add(a_request(f"prompt{second}", [second + 10] * 1500, max_tokens=8, arrival=float(second)))
        while engine.now < second + 1:
            engine.step()
    gaps = [b - a for i in range(8) for a, b in itertools.pairwise(engine.token_times[f"stream{i}"])]
    alone = costs["step_seconds"] + 8 * costs["row_seconds"]
    after_learning = gaps[len(gaps) // 10 :]
    assert percentile(after_learning, 0.99) <= 3 * alone
    assert percentile(gaps, 0.99) <= 3 * max(alone, percentile(gaps, 0.5))


def test_of_many_that_start_at_once_the_last_need_not_wait_behind_the_first_one_s_stream():
    """Prompts that wait beside fewer streams get on at nearly full speed, and no stream stops for long."""
    costs = {"step_seconds": 0.003, "row_seconds": 0.001, "token_seconds": 0.0008}
    engine = machine(**costs)
    for index in range(16):
        engine.scheduler.add(a_request(f"burst{index}", [index + 10] * 128, max_tokens=200))
    while engine.scheduler.has_work:
        engine.step()
    all_prompts_first = 16 * 128 * costs["token_seconds"] + 200 * (costs["step_seconds"] + 16 * costs["row_seconds"])
    assert engine.now < 1.15 * all_prompts_first
    gaps = [b - a for times in engine.token_times.values() for a, b in itertools.pairwise(times)]
    assert max(gaps[20:]) < 1.2 * (BURST_SECONDS + 0.003 + 0.016)


def test_a_prompt_beside_streams_is_not_starved():
    """It gets a fair part of the time that a step may take, and the least chunk where one token costs more."""
    for token_seconds, least in ((0.0005, 300), (0.1, MIN_CHUNK * 15)):
        engine = machine(step_seconds=0.01, row_seconds=0.0, token_seconds=token_seconds)
        engine.scheduler.add(a_request("stream", [9], max_tokens=3000))
        engine.scheduler.add(a_request("prompt", [10] * 3000, max_tokens=1))
        for _ in range(20):
            engine.step()
        assert sum(prefill for decodes, prefill, _ in engine.durations if decodes) >= least


def test_prompts_alone_have_the_whole_step():
    engine = machine(step_seconds=0.01, row_seconds=0.0, token_seconds=0.001)
    engine.scheduler.add(a_request("prompt", [10] * 1500, max_tokens=1))
    for _ in range(3):
        engine.step()
    assert [prefill for _, prefill, _ in engine.durations] == [512, 512, 476]


def test_what_streams_take_alone_is_measured_again_and_again():
    engine = machine(step_seconds=0.01, row_seconds=0.0, token_seconds=0.001)
    engine.scheduler.add(a_request("stream", [9], max_tokens=3000))
    for index in range(40):
        engine.scheduler.add(a_request(str(index), [10 + index] * 2000, max_tokens=1))
    for _ in range(200):
        engine.step()
    engine.step_seconds = 0.03
    for _ in range(300):
        engine.step()
    mixed = [seconds for decodes, prefill, seconds in engine.durations[-40:] if decodes and prefill]
    assert sum(mixed) / len(mixed) > engine.step_seconds * (1 + MOST_TIMES) / 2, "still bounded by the old 0.01 s"


def test_without_a_clock_nothing_is_bounded(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request("stream", [9], max_tokens=30))
    bench.step()
    bench.step()
    bench.add(a_request("prompt", range(3, 40), max_tokens=1))
    assert [len(row.token_ids) for row in bench.step().rows] == [1, 15]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 600), st.floats(0, 1e3)).filter(lambda step: step[0] or step[1]),
        max_size=60,
    ),
    st.integers(1, 600),
)
def test_the_budget_stays_within_its_bounds_whatever_steps_take(steps: list, max_num_tokens: int):
    budget = ChunkBudget(max_num_tokens)
    before = 1
    for num_decodes, num_prefill_tokens, seconds in steps:
        chunk = budget.next_beside(num_decodes, [1000]) if num_decodes else max_num_tokens
        assert chunk == 0 or min(MIN_CHUNK, max_num_tokens) <= chunk <= max_num_tokens
        assert chunk or before, "prompts wait for two steps"
        before = chunk
        budget.observe(num_decodes, min(num_prefill_tokens, chunk), seconds)


def test_the_budget_is_what_the_measured_costs_allow():
    budget = ChunkBudget(10_000)
    for _ in range(50):
        budget.observe(4, 0, 0.02)
        budget.observe(4, 64, 0.02 + 64 * 0.001)
    assert budget.next_beside(4, [1000]) == pytest.approx((MOST_TIMES - 1) * 0.02 / 0.001, rel=0.1)


def test_what_decoding_costs_is_known_for_more_sequences_than_were_seen():
    budget = ChunkBudget(10_000)
    for _ in range(30):
        for num_decodes in (1, 4, 8, 12):
            budget.observe(num_decodes, 0, 0.003 + 0.001 * num_decodes)
            budget.observe(num_decodes, 64, 0.003 + 0.001 * num_decodes + 64 * 0.001)
    budget.observe(14, 0, 0.017)
    assert budget.next_beside(16, [1000]) == pytest.approx((MOST_TIMES - 1) * 0.019 / 0.001, rel=0.1)


def test_prompts_pause_for_a_step_when_many_more_sequences_decode_than_in_the_last_one_without_prompts():
    budget = ChunkBudget(10_000)
    for _ in range(3):
        budget.observe(4, 0, 0.02)
        budget.observe(4, 64, 0.08)
    assert budget.next_beside(5, [1000]) > 0
    assert budget.next_beside(6, [1000]) == 0
    budget.observe(6, 0, 0.022)
    assert budget.next_beside(6, [1000]) > 0


def test_one_step_that_was_disturbed_changes_little():
    budget = ChunkBudget(10_000)
    for _ in range(50):
        budget.observe(4, 0, 0.02)
        budget.observe(4, 64, 0.02 + 64 * 0.001)
    before = budget.next_beside(4, [1000])
    budget.observe(4, 0, 0.2)
    assert budget.next_beside(4, [1000]) < 2 * before
    for _ in range(3):
        budget.observe(4, 0, 0.02)
    assert budget.next_beside(4, [1000]) == pytest.approx(before, rel=0.2)


def test_a_prompt_may_be_limited_by_a_threshold_of_its_own(tiny: Path):
    bench = Bench(tiny, a_config(long_prefill_token_threshold=5))
    bench.add(a_request("a", range(3, 20), max_tokens=1))
    bench.add(a_request("b", range(23, 40), max_tokens=1))
    assert [len(row.token_ids) for row in bench.step().rows] == [5, 5]
    bench.run()
    assert len(bench.tokens("a")) == 1


def test_prompts_that_are_soon_done_may_hold_up_few_streams_for_longer():
    budget = ChunkBudget(10_000)
    for _ in range(50):
        budget.observe(4, 0, 0.02)
        budget.observe(4, 64, 0.02 + 64 * 0.001)
    bounded, burst = budget.next_beside(4, [3000]), int(BURST_SECONDS / 0.001)
    assert budget.next_beside(4, [100]) == bounded
    assert budget.next_beside(4, [3000] * 8) == bounded, "these would take seconds"
    assert budget.next_beside(1, [100] * 8) == pytest.approx(burst, rel=0.1)
    assert bounded < budget.next_beside(4, [100] * 2) < burst
