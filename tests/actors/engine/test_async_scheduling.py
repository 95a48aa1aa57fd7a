"""Planning a step while the one before it runs changes when things are decided, and nothing that a client sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.ids import ClientIndex
from protocol.messages import FinishReason
from protocol.sampling import Grammar
from protocol.step import PENDING, StepPlan
from tests.helpers.scheduling import EOS, Bench, ScriptedGrammar, a_config, a_request, alone, ids

CLIENT = ClientIndex(0)


def token_ids(plan: StepPlan) -> list[list[int]]:
    return [row.token_ids for row in plan.rows]


def ahead(bench: Bench) -> StepPlan:
    plan = bench.schedule()
    assert plan is not None
    return plan


def test_a_token_that_is_not_known_yet_is_pending(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(prompt=[5, 6, 7], max_tokens=3))
    first = ahead(bench)
    second = ahead(bench)
    assert (token_ids(first), token_ids(second)) == ([[5, 6, 7]], [[PENDING]])
    assert (second.rows[0].start, second.rows[0].sample) == (3, True)
    bench.commit(first, bench.compute(first))
    assert token_ids(ahead(bench)) == [[PENDING]]


def test_nothing_is_planned_beyond_the_length_that_a_request_asked_for(tiny: Path):
    bench = Bench(tiny, a_config(), max_in_flight=2)
    bench.add(a_request("a", max_tokens=3))
    bench.run()
    assert [len(plan.rows) for plan in bench.plans] == [1, 1, 1]


@pytest.mark.parametrize("limit", [{"max_model_len": 6}, {"num_blocks": 1, "block_size": 5}])
def test_nothing_is_planned_beyond_what_fits(tiny: Path, limit: dict):
    bench = Bench(tiny, a_config(**limit), max_in_flight=2)
    bench.add(a_request("a", [5, 6, 7], max_tokens=30))
    bench.run()
    assert len(bench.plans) == len(bench.tokens("a")) == 3


def test_a_stop_token_costs_one_row_that_nobody_sees(tiny: Path):
    stop = alone(tiny, a_request(max_tokens=9)).tokens("a")[2]
    bench = Bench(tiny, a_config(), max_in_flight=2)
    bench.add(a_request("a", max_tokens=9, stop_token_ids=[stop]))
    bench.add(a_request("b", [9], max_tokens=9))
    bench.run()
    assert bench.reason("a") is FinishReason.STOP
    assert len(bench.tokens("a")) == 3
    assert sum(row.slot == 0 for plan in bench.plans for row in plan.rows) == 4
    assert bench.tokens("b") == alone(tiny, a_request("b", [9], max_tokens=9)).tokens("b")


def test_a_prompt_in_chunks_is_planned_ahead(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=4))
    bench.add(a_request(prompt=range(3, 13)))
    assert [token_ids(ahead(bench)) for _ in range(2)] == [[[3, 4, 5, 6]], [[7, 8, 9, 10]]]


def test_blocks_of_an_ended_sequence_go_to_the_next_plan_after_its_last_row(tiny: Path):
    """The dummy runner tells if a block is written by two."""
    bench = Bench(tiny, a_config(num_blocks=2, max_num_seqs=2, enable_prefix_caching=False), max_in_flight=2)
    stop = alone(tiny, a_request(max_tokens=9)).tokens("a")[1]
    bench.add(a_request("a", max_tokens=5, stop_token_ids=[stop]))
    second = a_request("b", [9, 8, 7, 6], max_tokens=4)
    bench.add(second)
    bench.run()
    assert bench.reason("a") is FinishReason.STOP
    assert bench.tokens("b") == alone(tiny, second).tokens("b")


def test_nothing_is_planned_before_a_grammar_has_seen_the_token_in_flight(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request("a", grammar=Grammar("scripted"), max_tokens=9), ScriptedGrammar([7, 8, 9]))
    bench.add(a_request("b", max_tokens=2))
    first = ahead(bench)
    assert bench.schedule() is None
    bench.commit(first, bench.compute(first))
    bench.max_in_flight = 2
    bench.run()
    assert bench.tokens("a") == [7, 8, 9]
    assert [len(plan.rows) for plan in bench.plans] == [2, 2, 1]


def test_a_prompt_with_a_grammar_is_planned_ahead_up_to_its_first_token(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=4))
    bench.add(a_request("a", range(3, 9), grammar=Grammar("scripted")), ScriptedGrammar([7, 8, 9]))
    assert token_ids(ahead(bench)) == [[3, 4, 5, 6]]
    assert token_ids(ahead(bench)) == [[7, 8]]


def test_a_sequence_that_is_preempted_while_it_samples_keeps_the_token(tiny: Path):
    bench = Bench(tiny, a_config(block_size=1, num_blocks=8, max_num_seqs=2), max_in_flight=2)
    requests = [a_request(name, [base, 7], max_tokens=6, logprobs=1) for name, base in (("a", 5), ("b", 6))]
    for request in requests:
        bench.add(request)
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    for request in requests:
        assert bench.outputs[request.request_id] == alone(tiny, request).outputs[request.request_id]


@pytest.mark.parametrize("sizes", [{"num_blocks": 4, "block_size": 3}, {"num_blocks": 10, "block_size": 1}])
def test_nobody_is_admitted_again_before_the_token_that_it_was_sampling_has_come(tiny: Path, sizes: dict):
    """Its published blocks may make room for it at once."""
    bench = Bench(tiny, a_config(max_num_seqs=2, max_num_batched_tokens=5, **sizes), max_in_flight=2)
    requests = [a_request(name, [3], max_tokens=12 - 3 * i, arrival=float(i)) for i, name in enumerate(("a", "b"))]
    for request in requests:
        bench.add(request)
    bench.run(100)
    assert bench.scheduler.stats().num_preemptions > 0
    for request in requests:
        tokens = bench.tokens(request.request_id)
        assert tokens == alone(tiny, request).tokens(request.request_id)[: len(tokens)]


def test_an_abort_with_two_steps_in_flight_frees_everything(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request("a"))
    bench.add(a_request("b"))
    plans = [ahead(bench), ahead(bench)]
    bench.scheduler.abort(CLIENT, ids("a", "b"))
    assert bench.scheduler.stats().kv_blocks_used == 0
    request = a_request("a", [9, 9])
    bench.add(request)
    for plan in plans:
        bench.commit(plan, bench.compute(plan))
    assert bench.outputs["a"] == []
    bench.run()
    assert bench.tokens("a") == alone(tiny, request).tokens("a")


def test_a_row_that_fails_leaves_a_void_row_in_the_next_plan(tiny: Path):
    bench = Bench(tiny, a_config(), max_in_flight=2)
    bench.add(a_request("a", allowed_token_ids=[EOS], stop_token_ids=[EOS], min_tokens=2))
    bench.add(a_request("b"))
    bench.run()
    assert bench.reason("a") is FinishReason.ERROR
    assert len(bench.outputs["a"]) == 1
    assert bench.tokens("b") == alone(tiny, a_request("b")).tokens("b")


def test_no_more_than_two_plans_are_in_flight(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request())
    ahead(bench)
    ahead(bench)
    with pytest.raises(AssertionError, match="not committed"):
        bench.schedule()


def test_outputs_are_those_of_synchronous_scheduling(tiny: Path):
    """Every one of them, with its offset and its log-probabilities."""
    requests = [
        a_request("greedy", range(3, 12), max_tokens=12, logprobs=2),
        a_request("sampled", range(4, 9), max_tokens=20, temperature=1.0, frequency_penalty=0.5, prompt_logprobs=1),
        a_request("eos", [9, 8], max_tokens=40, temperature=1.0, eos_token_ids=[EOS], min_tokens=4),
        a_request("nothing", range(3, 9), max_tokens=0, prompt_logprobs=0),
        a_request("one", [3], max_tokens=1, bad_words_token_ids=[[5]]),
    ]
    benches = [Bench(tiny, a_config(max_num_batched_tokens=6), max_in_flight=depth) for depth in (1, 2)]
    for bench in benches:
        for request in requests:
            bench.add(request)
        bench.run()
    assert benches[0].outputs == benches[1].outputs


def test_prompt_logprobs_come_whole_when_the_prompt_is_begun_anew_while_a_chunk_of_it_is_in_flight(tiny: Path):
    """The old chunk's, which come first, belong before or behind those of the chunk that takes its place."""
    request = a_request("a", range(3, 13), prompt_logprobs=1, max_tokens=2)
    for num_committed in (0, 1, 2):
        bench = Bench(tiny, a_config(max_num_batched_tokens=3), max_in_flight=2)
        bench.add(request)
        for _ in range(num_committed):
            bench.step()
        old = bench.schedule()
        assert bench.scheduler.reset_prefix_cache(preempts=True)
        new = bench.schedule()
        assert old is not None
        assert new is not None
        assert new.rows[0].start == 0
        for plan in (old, new):
            bench.commit(plan, bench.compute(plan))
        bench.run()
        assert bench.outputs["a"] == alone(tiny, request).outputs["a"]
