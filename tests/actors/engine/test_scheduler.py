"""What the scheduler decides: shares of a step, preemption, ends, aborts, and what it says again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from actors.engine.scheduler import Scheduler
from actors.engine.scheduler_config import SchedulerConfig
from protocol.ids import ClientIndex
from protocol.messages import FinishReason
from protocol.sampling import Grammar, RepetitionDetection
from protocol.step import Sampled, StepPlan, StepResult
from tests.helpers.scheduling import EOS, Bench, ScriptedGrammar, a_config, a_request, alone, ids, without_history

CLIENT = ClientIndex(0)
GRAMMAR = Grammar("scripted")


def shares(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    """Slot, start, tokens and whether it samples, of each row."""
    return [(row.slot, row.start, len(row.token_ids), row.sample) for row in plan.rows]


def result_with(plan: StepPlan, *token_ids: int) -> StepResult:
    """A result that gives these tokens to the plan's sampling rows."""
    slots = [row.slot for row in plan.rows if row.sample]
    return StepResult(plan.step, [Sampled(slot, t) for slot, t in zip(slots, token_ids, strict=True)])


# ------------------------------------------------------------------ shares


def test_nothing_to_do_is_no_plan():
    scheduler = Scheduler(a_config())
    assert scheduler.schedule(now=0.0) is None
    assert not scheduler.has_work


def test_one_request_is_prefilled_at_once_and_then_decodes(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(prompt=range(3, 8), max_tokens=3))
    bench.run()
    assert [shares(plan) for plan in bench.plans] == [[(0, 0, 5, True)], [(0, 5, 1, True)], [(0, 6, 1, True)]]
    assert len(bench.tokens("a")) == 3
    assert bench.reason("a") is FinishReason.LENGTH


def test_a_long_prompt_is_computed_in_chunks_and_emits_nothing_before_its_end(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=4))
    bench.add(a_request(prompt=range(3, 13), max_tokens=2))
    bench.step()
    bench.step()
    assert bench.outputs["a"] == []
    bench.run()
    assert [shares(plan) for plan in bench.plans] == [
        [(0, 0, 4, False)],
        [(0, 4, 4, False)],
        [(0, 8, 2, True)],
        [(0, 10, 1, True)],
    ]


def test_decoding_goes_before_prompts_under_way_and_these_before_new_ones(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=6))
    bench.add(a_request("long", range(23, 35)))
    bench.step()  # six tokens of it
    bench.add(a_request("short", [9]))
    assert shares(bench.step()) == [(0, 6, 6, True)]
    bench.add(a_request("longer", range(3, 15)))
    assert shares(bench.step()) == [(0, 12, 1, True), (1, 0, 1, True), (2, 0, 4, False)]
    assert shares(bench.step()) == [(0, 13, 1, True), (1, 1, 1, True), (2, 4, 4, False)]


def test_the_budget_left_goes_to_the_next_in_line(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=8, enable_prefix_caching=False))
    for name in ("a", "b", "c"):
        bench.add(a_request(name, range(3, 8)))
    assert shares(bench.step()) == [(0, 0, 5, True), (1, 0, 3, False)]
    assert shares(bench.step()) == [(0, 5, 1, True), (1, 3, 2, True), (2, 0, 5, True)]


def test_no_more_sequences_run_than_there_are_slots(tiny: Path):
    bench = Bench(tiny, a_config(max_num_seqs=2))
    for name in ("a", "b", "c"):
        bench.add(a_request(name, max_tokens=2))
    bench.step()
    assert bench.scheduler.stats().num_requests_running == 2
    assert bench.scheduler.stats().num_requests_waiting == 1
    bench.run()
    assert all(bench.reason(name) is FinishReason.LENGTH for name in ("a", "b", "c"))


def test_no_more_sequences_run_than_a_step_has_tokens(tiny: Path):
    """Else one that decodes would have to sit a step out."""
    bench = Bench(tiny, a_config(max_num_batched_tokens=2))
    for name in ("a", "b", "c"):
        bench.add(a_request(name, [7]))
    for _ in range(4):
        bench.step()
        assert bench.scheduler.stats().num_requests_running == 2


def test_decoding_goes_before_the_prompt_of_a_better_one(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=6))
    bench.add(a_request("late", [7], arrival=2.0))
    bench.step()
    bench.add(a_request("early", range(3, 15), arrival=1.0))
    assert shares(bench.step()) == [(0, 1, 1, True), (1, 0, 5, False)]
    assert shares(bench.step()) == [(0, 2, 1, True), (1, 5, 5, False)]


def test_fcfs_goes_by_arrival_and_ignores_priority(tiny: Path):
    bench = Bench(tiny, a_config(max_num_seqs=1))
    bench.add(a_request("second", arrival=2.0, priority=-5, max_tokens=1))
    bench.add(a_request("first", arrival=1.0, max_tokens=1))
    bench.add(a_request("third", arrival=2.0, max_tokens=1))
    bench.run()
    assert [plan.new_sequences[0].request_id for plan in bench.plans] == ["first", "second", "third"]


def test_priority_goes_by_priority_and_then_by_arrival(tiny: Path):
    bench = Bench(tiny, a_config(max_num_seqs=1, policy="priority"))
    bench.add(a_request("third", arrival=1.0, priority=3, max_tokens=1))
    bench.add(a_request("second", arrival=3.0, priority=-1, max_tokens=1))
    bench.add(a_request("first", arrival=2.0, priority=-1, max_tokens=1))
    bench.run()
    assert [plan.new_sequences[0].request_id for plan in bench.plans] == ["first", "second", "third"]


def test_a_request_that_lacks_blocks_is_not_overtaken(tiny: Path):
    """Small ones would keep it waiting for ever."""
    bench = Bench(tiny, a_config(num_blocks=4))
    bench.add(a_request("running", range(3, 10), max_tokens=2))
    bench.step()
    bench.add(a_request("big", range(3, 15), max_tokens=2))
    bench.add(a_request("small", [7], max_tokens=2))
    assert [row.slot for row in bench.step().rows] == [0]
    bench.run()
    assert bench.reason("big") is bench.reason("small") is FinishReason.LENGTH


@pytest.mark.parametrize("field", ["num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"])
def test_sizes_below_one_are_refused(field: str):
    with pytest.raises(ValueError, match=f"{field} must be at least 1, not 0"):
        a_config(**{field: 0})


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="policy must be one of fcfs, priority, not 'fair'"):
        SchedulerConfig(4, 4, 1, 1, 8, policy="fair")


# ------------------------------------------------------------------ preemption


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_preempted_sequences_give_the_same_tokens_as_undisturbed_ones(tiny: Path, policy: str, temperature: float):
    bench = Bench(tiny, a_config(num_blocks=7, max_num_batched_tokens=8, policy=policy))
    requests = [
        a_request(name, range(3 + i, 9 + i), max_tokens=14, temperature=temperature, priority=-i, logprobs=1)
        for i, name in enumerate(("a", "b", "c"))
    ]
    for request in requests:
        bench.add(request)
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    for request in requests:
        assert bench.outputs[request.request_id] == alone(tiny, request).outputs[request.request_id]


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "late"), ("priority", "early")])
def test_the_worst_is_preempted_and_comes_back_first(tiny: Path, policy: str, victim: str):
    bench = Bench(tiny, a_config(num_blocks=5, max_num_seqs=2, policy=policy))
    bench.add(a_request("early", range(3, 10), arrival=1.0, priority=1, max_tokens=12))
    bench.add(a_request("late", range(23, 30), arrival=2.0, priority=0, max_tokens=12))
    bench.add(a_request("waiting", [5], arrival=3.0, priority=1, max_tokens=1))
    bench.run()
    admitted = [new.request_id for plan in bench.plans for new in plan.new_sequences]
    survivor = "early" if victim == "late" else "late"
    assert admitted == [survivor, victim, victim, "waiting"]


def test_a_better_prompt_takes_the_blocks_of_one_that_had_its_share_of_this_step(tiny: Path):
    bench = Bench(tiny, a_config(block_size=1, num_blocks=13, max_num_batched_tokens=3))
    bench.add(a_request("b", [7], arrival=2.0, max_tokens=10))
    bench.add(a_request("c", [8], arrival=3.0, max_tokens=10))
    bench.step()
    best = a_request("best", range(3, 9), arrival=1.0)
    bench.add(best)
    while not bench.scheduler.stats().num_preemptions:
        plan = bench.step()
    assert [row.slot for row in plan.rows] == [0, 2]
    assert plan.freed_slots == [1]
    bench.run()
    assert bench.tokens("best") == alone(tiny, best).tokens("best")


def test_the_worst_of_all_sits_a_step_out_with_what_it_holds(tiny: Path):
    """Nobody needs its blocks yet, so it would be computed again for nothing."""
    bench = Bench(tiny, a_config(block_size=2, num_blocks=5))
    bench.add(a_request("a", [7, 8, 9], max_tokens=4))
    bench.add(a_request("b", [7, 8], max_tokens=6))
    while len(bench.step().rows) == 2:
        pass
    assert [row.slot for row in bench.plans[-1].rows] == [0]
    bench.run()
    assert bench.scheduler.stats().num_preemptions == 0
    assert len(bench.tokens("b")) == 6


def test_nobody_is_admitted_into_the_blocks_that_running_ones_need_next(tiny: Path):
    """It would be preempted at once."""
    bench = Bench(tiny, a_config(block_size=1, num_blocks=5))
    bench.add(a_request("a", [7, 8, 9], max_tokens=3))
    bench.step()
    bench.add(a_request("b", [7], max_tokens=1))
    assert bench.step().new_sequences == []
    bench.run()
    assert bench.scheduler.stats().num_preemptions == 0


def test_prompt_logprobs_are_not_gathered_again_after_a_preemption(tiny: Path):
    bench = Bench(tiny, a_config(num_blocks=5))
    requests = [a_request(name, range(3, 10), max_tokens=12, prompt_logprobs=1) for name in ("a", "b")]
    for request in requests:
        bench.add(request)
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    for request in requests:
        assert bench.outputs[request.request_id] == alone(tiny, request).outputs[request.request_id]


def test_a_sequence_that_outgrows_the_whole_pool_ends_with_an_error_that_names_the_blocks(tiny: Path):
    bench = Bench(tiny, a_config(num_blocks=2))
    bench.add(a_request(prompt=range(3, 10), max_tokens=20))
    bench.run()
    assert bench.reason("a") is FinishReason.ERROR
    assert bench.finish("a").error == "9 tokens need 3 KV blocks, but there are 2"
    assert len(bench.tokens("a")) == 2


# ------------------------------------------------------------------ ends


@pytest.mark.parametrize(
    ("params", "tokens", "reason", "stop_reason"),
    [
        ({"eos_token_ids": [EOS]}, [9, EOS], FinishReason.STOP, None),
        ({"stop_token_ids": [9]}, [9], FinishReason.STOP, 9),
        ({"eos_token_ids": [EOS], "stop_token_ids": [EOS]}, [EOS], FinishReason.STOP, None),
        ({"max_tokens": 1, "stop_token_ids": [9]}, [9], FinishReason.STOP, 9),
        ({"max_tokens": 3}, [9, EOS, 9], FinishReason.LENGTH, None),
        ({"eos_token_ids": [EOS], "min_tokens": 1}, [EOS, 9, EOS], FinishReason.STOP, None),
        ({"stop_token_ids": [9], "min_tokens": 2, "max_tokens": 3}, [9, 9, 9], FinishReason.STOP, 9),
        ({"max_tokens": 100}, [9] * 5, FinishReason.LENGTH, None),
        ({"repetition": RepetitionDetection(1, 1, 3)}, [9, 9, 9], FinishReason.REPETITION, None),
        ({"repetition": RepetitionDetection(2, 2, 2)}, [8, 9, 8, 9], FinishReason.REPETITION, None),
        ({"repetition": RepetitionDetection(2, 2, 2)}, [9, 8, 9, 7, 9], FinishReason.LENGTH, None),
        ({"repetition": RepetitionDetection(1, 1, 2), "min_tokens": 2}, [9, 9, 9], FinishReason.REPETITION, None),
    ],
)
def test_the_rule_that_ends_a_sequence(params: dict, tokens: list, reason: FinishReason, stop_reason: int | None):
    """With 8 positions in all and a prompt of 3. The token that ends it is part of the output."""
    scheduler = Scheduler(a_config(max_model_len=8))
    scheduler.add(a_request(**params))
    for token_id in tokens:
        plan = scheduler.schedule(now=0.0)
        assert plan is not None
        ((client, output),) = scheduler.commit(plan, result_with(plan, token_id))
        assert client == 0
        assert output.new_token_ids == [token_id]
    assert (output.finish_reason, output.stop_reason, output.error) == (reason, stop_reason, None)
    assert not scheduler.has_work
    assert scheduler.stats().kv_blocks_used == 0


def test_no_tokens_asked_for_computes_the_prompt_only(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=4))
    bench.add(a_request(prompt=range(3, 13), max_tokens=0, prompt_logprobs=1))
    bench.run()
    assert not any(row.sample for plan in bench.plans for row in plan.rows)
    (output,) = bench.outputs["a"]
    assert output.new_token_ids == []
    assert output.finish_reason is FinishReason.LENGTH
    assert output.prompt_logprobs is not None
    assert [entry and entry.token_ids[0] for entry in output.prompt_logprobs] == [None, *range(4, 13)]


def test_an_error_of_one_row_ends_only_its_request(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request("a", allowed_token_ids=[EOS], stop_token_ids=[EOS], min_tokens=2))
    bench.add(a_request("b"))
    bench.run()
    assert bench.reason("a") is FinishReason.ERROR
    assert "no token is allowed" in str(bench.finish("a").error)
    assert bench.reason("b") is FinishReason.LENGTH


# ------------------------------------------------------------------ log-probabilities


@pytest.mark.parametrize("budget", [1, 3, 16])
def test_prompt_logprobs_come_whole_with_the_first_output(tiny: Path, budget: int):
    request = a_request(prompt=range(3, 13), prompt_logprobs=2, max_tokens=3)
    bench = Bench(tiny, a_config(max_num_batched_tokens=budget))
    bench.add(request)
    bench.run()
    first, *later = bench.outputs["a"]
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == 10
    assert first.prompt_logprobs[0] is None
    assert all(output.prompt_logprobs is None for output in later)
    assert first == alone(tiny, request).outputs["a"][0]


def test_prompt_logprobs_survive_preemption_in_the_middle_of_the_prompt(tiny: Path):
    request = a_request("b", range(3, 15), prompt_logprobs=0, max_tokens=3, arrival=1.0)
    bench = Bench(tiny, a_config(num_blocks=5, max_num_batched_tokens=3))
    bench.add(a_request("a", range(3, 9), max_tokens=16))
    while not bench.outputs["a"]:
        bench.step()
    bench.add(request)
    while not bench.scheduler.stats().num_preemptions:
        bench.step()
    assert bench.outputs["b"] == []
    bench.run()
    assert bench.outputs["b"] == alone(tiny, request).outputs["b"]


def test_a_prompt_of_one_token_has_one_empty_entry(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(prompt=[5], prompt_logprobs=1, max_tokens=1))
    bench.run()
    assert bench.finish("a").prompt_logprobs == [None]


@pytest.mark.parametrize("count", [None, 0, 2])
def test_logprobs_come_with_their_tokens(tiny: Path, count: int | None):
    bench = Bench(tiny, a_config())
    bench.add(a_request(logprobs=count))
    bench.run()
    for output in bench.outputs["a"]:
        if count is None:
            assert output.logprobs is None
        else:
            assert output.logprobs is not None
            assert [entry.token_ids[0] for entry in output.logprobs] == output.new_token_ids
            assert len(output.logprobs[0].token_ids) == count + 1


# ------------------------------------------------------------------ grammars


def test_a_finished_grammar_ends_the_sequence(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(grammar=GRAMMAR, max_tokens=9), ScriptedGrammar([7, 8, 9]))
    bench.run()
    assert bench.tokens("a") == [7, 8, 9]
    assert bench.reason("a") is FinishReason.STOP
    assert bench.finish("a").stop_reason is None


def test_the_length_goes_before_the_end_of_a_grammar(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(grammar=GRAMMAR, max_tokens=3), ScriptedGrammar([7, 8, 9]))
    bench.run()
    assert bench.reason("a") is FinishReason.LENGTH


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_grammar_that_fails_on_its_way_ends_only_its_request(tiny: Path, fail_at: int):
    bench = Bench(tiny, a_config())
    bench.add(a_request("a", grammar=GRAMMAR), ScriptedGrammar([7, 8, 9], fail_at=fail_at))
    bench.add(a_request("b"))
    bench.run()
    assert bench.tokens("a") == [7, 8, 9][:fail_at]
    assert bench.finish("a").error == "too ambiguous"
    assert bench.reason("b") is FinishReason.LENGTH


def test_a_token_that_the_grammar_rejects_ends_only_its_request():
    scheduler = Scheduler(a_config())
    scheduler.add(a_request(grammar=GRAMMAR), ScriptedGrammar([7, 8]))
    plan = scheduler.schedule(now=0.0)
    assert plan is not None
    ((_, output),) = scheduler.commit(plan, result_with(plan, 9))
    assert output.finish_reason is FinishReason.ERROR
    assert output.error == "token 9 is not allowed"


def test_a_preempted_sequence_keeps_its_place_in_the_grammar(tiny: Path):
    script = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    bench = Bench(tiny, a_config(num_blocks=5))
    bench.add(a_request("a", range(3, 10), max_tokens=12))
    bench.add(a_request("b", range(3, 10), grammar=GRAMMAR, max_tokens=12), ScriptedGrammar(script))
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    assert bench.tokens("b") == script


# ------------------------------------------------------------------ continuations


@pytest.mark.parametrize("done", [1, 4, 9])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_continuation_goes_on_as_if_nothing_had_happened(tiny: Path, done: int, temperature: float):
    request = a_request(max_tokens=10, temperature=temperature, prompt_logprobs=1, logprobs=1)
    whole = alone(tiny, request)
    tokens = whole.tokens("a")
    replayed = alone(tiny, msgspec.structs.replace(request, continuation_token_ids=tokens[:done]))
    assert replayed.tokens("a") == tokens
    assert replayed.outputs["a"] == whole.outputs["a"][done:]


@pytest.mark.parametrize(
    ("params", "continuation", "reason", "stop_reason"),
    [
        ({"max_tokens": 2}, [7, 8], FinishReason.LENGTH, None),
        ({"eos_token_ids": [EOS]}, [7, EOS], FinishReason.STOP, None),
        ({"stop_token_ids": [8]}, [7, 8], FinishReason.STOP, 8),
        ({"max_tokens": 100}, [7] * 61, FinishReason.LENGTH, None),
    ],
)
def test_a_continuation_that_is_complete_ends_at_once(
    params: dict, continuation: list, reason: FinishReason, stop_reason: int | None
):
    """The engine died after the last token, and before anybody heard that it was the last."""
    scheduler = Scheduler(a_config())
    ((_, output),) = scheduler.add(a_request(continuation=continuation, **params))
    assert (output.offset, output.new_token_ids) == (len(continuation), [])
    assert (output.finish_reason, output.stop_reason) == (reason, stop_reason)
    assert not scheduler.has_work


def test_a_continuation_moves_its_grammar_on(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(grammar=GRAMMAR, max_tokens=9, continuation=[7, 8]), ScriptedGrammar([7, 8, 9, 10]))
    bench.run()
    assert bench.tokens("a") == [7, 8, 9, 10]


@pytest.mark.parametrize("continuation", [[8], [8, 7], [7, 7]])
def test_a_continuation_that_its_grammar_rejects_is_refused(continuation: list):
    request = a_request(grammar=GRAMMAR, max_tokens=9, continuation=continuation)
    ((_, output),) = Scheduler(a_config()).add(request, ScriptedGrammar([7, 8, 9]))
    assert output.finish_reason is FinishReason.ERROR


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], "the prompt has no tokens"),
        ([5] * 64, "the prompt has 64 tokens, but at most 63 fit"),
        ([5] * 21, "21 tokens need 6 KV blocks, but there are 5"),
    ],
)
def test_an_impossible_prompt_is_refused(prompt: list, error: str):
    scheduler = Scheduler(a_config(num_blocks=5))
    ((client, output),) = scheduler.add(a_request(prompt=prompt, client=3))
    assert client == 3
    assert output.finish_reason is FinishReason.ERROR
    assert output.error == error
    assert not scheduler.has_work


def test_a_grammar_that_did_not_compile_is_refused():
    grammar = ScriptedGrammar([7])
    grammar.error = "unknown name"
    ((_, output),) = Scheduler(a_config()).add(a_request(grammar=GRAMMAR), grammar)
    assert output.error == "unknown name"


def test_using_an_id_twice_ends_both_of_that_client_with_one_error(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request())
    bench.step()
    bench.add(a_request())
    assert bench.reason("a") is FinishReason.ERROR
    assert not bench.scheduler.has_work


def test_another_clients_id_is_refused_and_leaves_that_client_alone(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(client=0))
    ((client, output),) = bench.scheduler.add(a_request(client=1))
    assert client == 1
    assert output.finish_reason is FinishReason.ERROR
    bench.run()
    assert bench.reason("a") is FinishReason.LENGTH


# ------------------------------------------------------------------ aborts


def test_aborting_while_the_step_runs_leaves_the_plan_valid(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request("a"))
    bench.add(a_request("b"))
    bench.step()
    plan = bench.schedule()
    assert plan is not None
    bench.scheduler.abort(CLIENT, ids("a"))
    num_outputs = len(bench.outputs["a"])
    bench.add(a_request("c"))
    bench.commit(plan, bench.compute(plan))
    assert len(bench.outputs["a"]) == num_outputs
    assert bench.step().freed_slots == [0]
    bench.run()
    assert bench.reason("b") is bench.reason("c") is FinishReason.LENGTH


def test_an_id_may_come_back_while_the_step_of_its_aborted_forerunner_runs(tiny: Path):
    request = a_request(max_tokens=4)
    bench = Bench(tiny, a_config())
    bench.add(request)
    plan = bench.schedule()
    assert plan is not None
    bench.scheduler.abort(CLIENT, ids("a"))
    bench.add(request)
    bench.commit(plan, bench.compute(plan))
    assert bench.outputs["a"] == []
    bench.run()
    assert bench.tokens("a") == alone(tiny, request).tokens("a")


def test_aborting_is_idempotent_and_only_for_ones_own(tiny: Path):
    bench = Bench(tiny, a_config(max_num_seqs=1))
    bench.add(a_request("running"))
    bench.add(a_request("waiting"))
    bench.step()
    bench.scheduler.abort(ClientIndex(1), ids("running", "waiting"))
    assert bench.scheduler.request_ids == ids("running", "waiting")
    bench.scheduler.abort(CLIENT, ids("running", "waiting", "unknown"))
    bench.scheduler.abort(CLIENT, ids("running", "waiting"))
    assert bench.scheduler.request_ids == []
    assert bench.scheduler.schedule(now=0.0) is None
    assert bench.scheduler.stats().kv_blocks_used == 0


def test_a_client_that_leaves_takes_its_requests_with_it(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request("mine", client=0, max_tokens=1))
    bench.add(a_request("theirs", client=1))
    bench.add(a_request("theirs, waiting", client=1))
    bench.step()
    bench.scheduler.abort_client(ClientIndex(1))
    bench.scheduler.abort_client(ClientIndex(0))
    assert bench.scheduler.request_ids == []
    (output,) = bench.scheduler.resync(CLIENT, dict.fromkeys(ids("mine"), 0))
    assert output.error == "unknown request"


def test_a_request_that_is_aborted_under_a_used_id_is_unknown(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(max_tokens=1))
    bench.run()
    bench.scheduler.add(a_request(max_tokens=1))
    bench.scheduler.abort(CLIENT, ids("a"))
    (output,) = bench.scheduler.resync(CLIENT, dict.fromkeys(ids("a"), 0))
    assert output.error == "unknown request"


# ------------------------------------------------------------------ resync


def test_resync_says_everything_again_from_the_offset_on(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(logprobs=1, prompt_logprobs=1, max_tokens=4))
    for _ in range(3):
        bench.step()
    first, second, third = bench.outputs["a"]
    (whole,) = bench.scheduler.resync(CLIENT, dict.fromkeys(ids("a"), 0))
    assert whole.new_token_ids == [*first.new_token_ids, *second.new_token_ids, *third.new_token_ids]
    assert whole.logprobs == [*(first.logprobs or ()), *(second.logprobs or ()), *(third.logprobs or ())]
    assert whole.prompt_logprobs == first.prompt_logprobs
    assert bench.scheduler.resync(CLIENT, dict.fromkeys(ids("a"), 2)) == [third]
    assert bench.scheduler.resync(CLIENT, dict.fromkeys(ids("a"), 3)) == []


def test_resync_says_the_end_of_a_finished_request_again(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(max_tokens=2))
    bench.run()
    (last,) = bench.scheduler.resync(CLIENT, dict.fromkeys(ids("a"), 2))
    assert (last.offset, last.new_token_ids, last.finish_reason) == (2, [], FinishReason.LENGTH)
    (again,) = bench.scheduler.resync(CLIENT, dict.fromkeys(ids("a"), 1))
    assert without_history(again) == bench.finish("a")


def test_resync_answers_an_unknown_request_with_an_error():
    (output,) = Scheduler(a_config()).resync(CLIENT, dict.fromkeys(ids("gone"), 7))
    assert (output.request_id, output.offset, output.error) == ("gone", 7, "unknown request")
    assert output.finish_reason is FinishReason.ERROR


def test_resync_does_not_tell_one_client_about_another(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request())
    bench.step()
    (output,) = bench.scheduler.resync(ClientIndex(1), dict.fromkeys(ids("a"), 0))
    assert output.error == "unknown request"
    assert bench.scheduler.has_work


@pytest.mark.parametrize("offset", [-1, 2])
def test_an_offset_that_cannot_be_served_ends_the_request(tiny: Path, offset: int):
    bench = Bench(tiny, a_config())
    bench.add(a_request())
    bench.step()
    (output,) = bench.scheduler.resync(CLIENT, dict.fromkeys(ids("a"), offset))
    assert output.finish_reason is FinishReason.ERROR
    assert not bench.scheduler.has_work


def test_only_the_newest_finished_requests_are_remembered(tiny: Path):
    bench = Bench(tiny, a_config())
    for index in range(1026):
        bench.add(a_request(str(index), prompt=[5, 6], max_tokens=1, continuation=[9]))
    answers = bench.scheduler.resync(CLIENT, dict.fromkeys(ids("0", "1", "2", "1025"), 1))
    assert [answer.error for answer in answers] == ["unknown request", "unknown request", None, None]


# ------------------------------------------------------------------ counters


def test_stats_count_each_prompt_once_however_often_it_is_computed(tiny: Path):
    bench = Bench(tiny, a_config(num_blocks=5))
    bench.add(a_request("a", range(3, 10), max_tokens=12))
    bench.add(a_request("b", range(3, 10), max_tokens=12))
    bench.run()
    stats = bench.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.prompt_tokens == 14
    assert stats.generation_tokens == 24
    assert stats.num_steps == len(bench.plans)
    assert (stats.kv_blocks_used, stats.kv_blocks_total) == (0, 5)


def test_a_sequence_tells_its_state(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request())
    bench.step()
    assert "1 running, 0 waiting" in repr(bench.scheduler)
