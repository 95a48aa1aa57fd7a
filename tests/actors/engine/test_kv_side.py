"""What an engine saves, another one finds; and whatever its connector does, every text is what it is without one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from actors.engine.hold import Hold
from protocol.ids import ClientIndex
from protocol.kv import KvCounts, KvFound, KvParams, KvRoom
from protocol.messages import EngineCoreOutput, FinishReason
from protocol.pooling import Pooling, PoolingParams
from tests.helpers.memory_connector import KvBench
from tests.helpers.scheduling import a_config, a_request, alone, ids

PROMPT = [3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7, 8, 9]
"""Three full blocks and two tokens."""
WAITED = 5.6
"""Longer than anything waits for the connector, in seconds."""


@pytest.fixture
def bench(tiny: Path) -> KvBench:
    return KvBench(tiny, a_config())


def tokens_alone(tiny: Path, request_id: str = "a", **params: object) -> list[int]:
    return alone(tiny, a_request(request_id, PROMPT, **params)).tokens(request_id)


def successor(tiny: Path, bench: KvBench, **more: object) -> KvBench:
    """An engine that finds what this one has saved."""
    return KvBench(tiny, bench.config, disk=bench.disk, **more)


def saved(bench: KvBench) -> KvBench:
    """It has computed the prompt, and everything is saved."""
    bench.add(a_request("first", PROMPT))
    bench.settle()
    return bench


# ---------------------------------------------------------------------------------------------- saving


def test_every_published_block_is_saved_once(bench: KvBench):
    for name in ("a", "b"):
        bench.add(a_request(name, PROMPT))
        bench.settle()
    assert bench.connector.num_saved == len(bench.disk) == 4
    assert sum(len(plan.saves) for plan in bench.plans) == len(bench.disk)


def test_what_was_used_is_told_as_a_chain_at_the_end(bench: KvBench):
    for name in ("a", "b"):
        bench.add(a_request(name, PROMPT))
        bench.settle()
    assert bench.connector.used == [list(bench.disk)] * 2


def test_the_last_blocks_are_saved_by_a_plan_without_rows(bench: KvBench):
    bench.add(a_request("a", PROMPT, max_tokens=1))
    bench.settle()
    assert bench.plans[-1].rows == []
    assert len(bench.plans[-1].saves) == 3
    assert bench.scheduler.stats(whole=True).steps_by_tokens[0] == 0, "a plan without rows is no step of no tokens"


def test_nothing_is_saved_without_room(tiny: Path):
    bench = KvBench(tiny, a_config(), answers=False)
    bench.add(a_request("a", PROMPT))
    bench.attend()
    (find,) = bench.connector.asked
    bench.connector.answer_find(find)
    bench.run()
    assert not any(plan.saves for plan in bench.plans)
    bench.connector.grant(2)
    bench.talk()
    bench.run()
    assert len(bench.plans[-1].saves) == 2
    assert not bench.scheduler.has_work


def test_blocks_that_are_evicted_before_their_turn_are_not_saved(tiny: Path):
    bench = KvBench(tiny, a_config(num_blocks=5, max_model_len=20), answers=False)
    for name, first in (("a", 10), ("b", 20)):
        bench.add(a_request(name, [first] * 14, max_tokens=1))
        bench.attend()
        for find in list(bench.connector.asked):
            bench.connector.answer_find(find)
        bench.run()
    bench.connector.grant(8)
    bench.talk()
    bench.run()
    assert 3 <= bench.connector.num_saved < 6
    bench.connector.check()


def test_a_plan_saves_what_it_evicts(tiny: Path):
    bench = KvBench(tiny, a_config(num_blocks=4, max_model_len=16), answers=False)
    bench.add(a_request("a", [10] * 12, max_tokens=1))
    bench.attend()
    bench.connector.answer_all()
    bench.talk()
    bench.add(a_request("b", [20] * 14, max_tokens=1))
    bench.attend()
    bench.connector.answer_all()
    bench.talk()
    bench.settle()
    assert bench.connector.num_saved >= 4
    assert bench.tokens("b") == alone(tiny, a_request("b", [20] * 14, max_tokens=1)).tokens("b")


# ---------------------------------------------------------------------------------------------- finding


def test_a_successor_loads_what_was_computed_before(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench))
    after.add(a_request("a", PROMPT))
    after.settle()
    assert after.tokens("a") == tokens_alone(tiny)
    assert len(after.plans[0].loads) == 3
    assert after.outputs["a"][0].num_cached_tokens == 12
    stats = after.scheduler.stats()
    assert (stats.external_cache_queries, stats.external_cache_hits, stats.prefix_cache_hits) == (12, 12, 0)
    assert not after.connector.num_saved - 1, "what was loaded is not saved again"


def test_what_was_loaded_is_found_in_the_pool_once_it_is_there(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench))
    after.add(a_request("a", PROMPT))
    plan = after.schedule()
    after.add(a_request("b", PROMPT))
    after.commit(plan, after.compute(plan))
    after.settle()
    assert sum(len(plan.loads) for plan in after.plans) == 3
    assert after.scheduler.stats().prefix_cache_hits == 12


def test_who_waits_for_the_connector_is_overtaken(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench), answers=False)
    after.add(a_request("a", PROMPT))
    after.add(a_request("short", [5, 6]))
    plan = after.schedule()
    assert [new.request_id for new in plan.new_sequences] == ["short"]
    after.commit(plan, after.compute(plan))
    after.connector.answer_all()
    after.talk()
    after.settle()
    assert after.tokens("a") == tokens_alone(tiny)


def test_nobody_waits_longer_than_allowed_nor_for_one_that_is_silent(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench), answers=False)
    after.add(a_request("a", PROMPT))
    assert after.schedule() is None
    assert after.scheduler.kv.next_deadline == pytest.approx(5.5)
    after.now = WAITED
    assert after.schedule() is not None
    after.add(a_request("b", [9, *PROMPT]))
    after.attend()
    assert not after.connector.asked, "it was asked though it does not answer"
    after.take(after.scheduler.hear_connector(KvCounts(after.connector.epoch, after.connector.kv_epoch)))
    after.add(a_request("c", [8, *PROMPT]))
    after.attend()
    assert len(after.connector.asked) == 1


def test_an_answer_that_comes_late_or_twice_changes_nothing(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench), answers=False)
    after.add(a_request("a", PROMPT))
    after.attend()
    (find,) = after.connector.asked
    answer = after.connector.answer_find(find)
    after.talk()
    assert after.scheduler.hear_connector(answer) == []
    after.settle()
    assert after.scheduler.hear_connector(answer) == []
    assert after.tokens("a") == tokens_alone(tiny)


def test_frames_that_there_are_not_are_neither_loaded_nor_saved_to(tiny: Path):
    bench = KvBench(tiny, a_config(), answers=False)
    bench.add(a_request("a", PROMPT))
    bench.attend()
    (find,) = bench.connector.asked
    kv = bench.connector
    bench.take(bench.scheduler.hear_connector(KvFound(kv.epoch, kv.kv_epoch, find, [0, 99])))
    bench.take(bench.scheduler.hear_connector(KvRoom(kv.epoch, kv.kv_epoch, [99, -1])))
    bench.settle()
    assert bench.tokens("a") == tokens_alone(tiny)
    assert not any(plan.saves or plan.loads for plan in bench.plans)


def test_what_is_not_found_whole_is_computed_from_there(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench), answers=False)
    after.add(a_request("a", PROMPT))
    after.attend()
    (find,) = after.connector.asked
    after.connector.answer_find(find, most=1)
    after.settle()
    assert after.outputs["a"][0].num_cached_tokens == 4
    assert after.tokens("a") == tokens_alone(tiny)


def test_blocks_behind_a_gap_are_asked_for_once_more(tiny: Path, bench: KvBench):
    """While it waited, what the pool had of its beginning went to another one."""
    after = KvBench(tiny, a_config(num_blocks=6, max_model_len=24), disk=saved(bench).disk, answers=False)
    after.add(a_request("begin", PROMPT[:5], max_tokens=1))
    after.attend()
    after.connector.answer_all()
    after.talk()
    after.run()
    after.add(a_request("a", PROMPT))
    after.attend()
    (find,) = after.connector.asked
    assert len(after.connector.asked[find].hashes) == 2
    after.connector.answer_all()
    after.talk()
    after.scheduler._pool.forget()
    after.schedule()
    after.attend()
    assert [len(asked.hashes) for asked in after.connector.asked.values()] == [3]
    after.connector.answer_all()
    after.talk()
    after.settle()
    assert after.outputs["a"][0].num_cached_tokens == 12


def test_requests_that_need_every_position_are_not_asked_for(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench), answers=False)
    after.add(a_request("a", PROMPT, prompt_logprobs=1))
    pooled = a_request("b", PROMPT, max_tokens=0)
    after.add(msgspec.structs.replace(pooled, pooling=PoolingParams(Pooling.MEAN)))
    after.attend()
    assert not after.connector.asked


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("how", ["abort", "client", "all", "deadline"])
def test_what_was_found_is_left_when_the_request_goes(tiny: Path, bench: KvBench, how: str, answered: bool):
    after = successor(tiny, saved(bench), answers=False)
    after.add(msgspec.structs.replace(a_request("a", PROMPT), deadline=1.0))
    after.attend()
    if answered:
        (find,) = after.connector.asked
        after.connector.answer_find(find)
        after.talk()
    match how:
        case "abort":
            after.scheduler.abort(ClientIndex(0), ids("a"))
        case "client":
            after.scheduler.abort_client(ClientIndex(0))
        case "all":
            after.take(after.scheduler.abort_all("enough"))
        case "deadline":
            after.take(after.scheduler.expire(2.0))
    after.talk()
    assert not after.connector.asked
    assert not after.connector.found
    assert after.schedule() is None
    assert after.scheduler.kv.next_deadline == float("inf")


def test_an_abort_while_blocks_are_loaded_leaves_them_behind_the_plan(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench))
    after.add(a_request("a", PROMPT))
    plan = after.schedule()
    after.scheduler.abort(ClientIndex(0), ids("a"))
    after.talk()
    assert after.connector.found
    after.commit(plan, after.compute(plan))
    assert not after.connector.found
    after.settle()
    assert after.scheduler.stats().kv_blocks_used == 0


def test_those_that_wait_far_behind_pin_nothing(tiny: Path, bench: KvBench):
    after = KvBench(tiny, a_config(max_num_seqs=1), disk=saved(bench).disk)
    for index in range(5):
        after.add(a_request(f"r{index}", PROMPT))
    after.attend()
    assert len(after.connector.found) == 2


def test_a_preempted_sequence_loads_what_it_had(tiny: Path):
    bench = KvBench(tiny, a_config(num_blocks=8, max_model_len=28), num_frames=32)
    requests = [a_request(name, [token] * 9, max_tokens=18) for name, token in (("a", 5), ("b", 6), ("c", 7))]
    for request in requests:
        bench.add(request)
    bench.settle()
    assert bench.scheduler.stats().num_preemptions
    assert sum(len(plan.loads) for plan in bench.plans)
    for request in requests:
        assert bench.tokens(request.request_id) == alone(tiny, request).tokens(request.request_id)


# ---------------------------------------------------------------------------------------------- over several plans


LONG = [3, 4, 5, 6] * 6 + [7, 8]
"""Six full blocks and two tokens."""


def loading(
    tiny: Path,
    max_num_loads: int,
    *,
    prompts: tuple[list[int], ...] = (LONG,),
    decoding: bool = False,
    **sizes: int,
) -> KvBench:
    """An engine that finds all blocks of these prompts, r0, r1, …, with so many for one plan."""
    before = KvBench(tiny, a_config(), num_frames=32)
    for index, prompt in enumerate(prompts):
        before.add(a_request(f"r{index}", prompt))
    before.settle()
    config = a_config(max_num_loads=max_num_loads, **sizes)
    after = KvBench(tiny, config, num_frames=32, disk=before.disk)
    if decoding:
        after.add(a_request("other", [9, 9], max_tokens=20))
        after.step()
    for index, prompt in enumerate(prompts):
        after.add(a_request(f"r{index}", prompt))
    return after


def test_a_long_prompt_is_loaded_over_several_plans_beside_those_that_decode(tiny: Path):
    bench = loading(tiny, 2, decoding=True)
    plans = [bench.step() for _ in range(5)]
    assert [len(plan.loads) for plan in plans] == [2, 2, 2, 0, 0]
    assert [len(plan.rows) for plan in plans] == [1, 1, 1, 2, 2]
    assert [len(plan.new_sequences) for plan in plans] == [0, 0, 1, 0, 0]
    assert plans[2].new_sequences[0].num_computed_tokens == 24
    bench.settle()
    assert bench.tokens("r0") == alone(tiny, a_request("r0", LONG)).tokens("r0")
    assert bench.outputs["r0"][0].num_cached_tokens == 24
    assert bench.tokens("other") == alone(tiny, a_request("other", [9, 9], max_tokens=20)).tokens("other")


def test_a_long_prompt_keeps_others_from_nothing(tiny: Path):
    short = [9] * 4 + [5]
    bench = loading(tiny, 2, prompts=(LONG, short))
    bench.settle()
    assert max(len(plan.loads) for plan in bench.plans) == 2
    assert bench.tokens("r1") == alone(tiny, a_request("r1", short)).tokens("r1")
    assert [new.request_id for plan in bench.plans for new in plan.new_sequences] == ["r1", "r0"]


def test_a_connector_that_dies_while_it_loads_is_done_without(tiny: Path):
    bench = loading(tiny, 2, decoding=True)
    bench.step()
    bench.lose()
    bench.run()
    assert bench.tokens("r0") == alone(tiny, a_request("r0", LONG)).tokens("r0")
    assert bench.scheduler.stats().kv_blocks_used == 0
    bench.connect()
    bench.settle()


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_request_that_goes_while_it_loads_leaves_its_frames_behind_the_plan(tiny: Path, in_flight: bool):
    bench = loading(tiny, 2, decoding=True)
    plan = bench.schedule()
    assert len(plan.loads) == 2
    if not in_flight:
        bench.commit(plan, bench.compute(plan))
    bench.scheduler.abort(ClientIndex(0), ids("r0"))
    bench.talk()
    assert bool(bench.connector.found) == in_flight
    if in_flight:
        bench.commit(plan, bench.compute(plan))
    assert not bench.connector.found
    bench.settle()
    assert not any(plan.freed_slots for plan in bench.plans[:-1]), "the runner never heard of it"


def test_short_prompts_that_come_all_the_time_do_not_keep_a_long_one_from_loading(tiny: Path):
    shorts = tuple([9, 9, 9, 9, 8, 8, 8, index] for index in range(10, 13))
    bench = loading(tiny, 2, prompts=(LONG, *([*short, 5] for short in shorts)))
    frames = [copy.frame for copy in bench.step().loads]
    first = bench.plans[0]
    assert len(frames) == 2
    assert first.rows == []
    assert bench.scheduler.kv.finds.num_loading > 0
    assert bench.scheduler._live["r0"].num_computed_tokens > 0, "the first that came has a part of it"
    bench.settle()


def test_nothing_is_loaded_for_a_plan_that_is_not_made(tiny: Path):
    """What decodes has all its tokens planned, and a plan without rows has to wait."""
    bench = loading(tiny, 2)
    bench.add(a_request("other", [9, 9], max_tokens=1))
    plan = bench.schedule()
    assert [len(plan.rows), len(plan.loads)] == [1, 2]
    assert bench.schedule() is None
    bench.commit(plan, bench.compute(plan))
    bench.settle()
    assert bench.tokens("r0") == alone(tiny, a_request("r0", LONG)).tokens("r0")
    assert sum(len(plan.loads) for plan in bench.plans) == 6


def test_frames_are_kept_until_the_last_plan_that_loads_from_them_is_done(tiny: Path):
    bench = loading(tiny, 3, decoding=True)
    plans = [bench.schedule(), bench.schedule()]
    assert [len(plan.loads) for plan in plans] == [3, 3]
    results = [bench.compute(plan) for plan in plans]
    bench.commit(plans[0], results[0])
    assert bench.connector.found
    bench.commit(plans[1], results[1])
    assert not bench.connector.found
    bench.settle()


def test_no_more_are_admitted_than_a_step_has_tokens(tiny: Path):
    prompts = tuple([*([token] * 8), 5] for token in (11, 12, 13, 14))
    bench = loading(tiny, 1, prompts=prompts, max_num_batched_tokens=2)
    bench.step()
    assert len(bench.scheduler._running) == 2
    bench.settle()


def test_what_a_step_took_with_loads_is_no_measure_of_tokens(tiny: Path):
    bench = loading(tiny, 8)
    plan = bench.schedule()
    assert plan.loads
    assert plan.rows
    bench.scheduler.commit(plan, bench.compute(plan), seconds=100.0)
    assert bench.scheduler._chunk_budget._token_seconds is None


# ---------------------------------------------------------------------------------------------- with tickets


def test_a_ticket_goes_with_the_find(tiny: Path, bench: KvBench):
    bench.answers = False
    bench.add(a_request("a", PROMPT, kv=KvParams(ticket=b"t")))
    bench.attend()
    assert [find.ticket for find in bench.connector.asked.values()] == [b"t"]
    assert bench.connector.declined == []


def test_the_ticket_of_who_leaves_before_it_was_asked_for_is_given_back(bench: KvBench):
    bench.answers = False
    for name in ("a", "b"):
        bench.add(a_request(name, PROMPT, kv=KvParams(ticket=name.encode())))
    bench.scheduler.abort(ClientIndex(0), ids("a"))
    bench.attend()
    bench.scheduler.abort(ClientIndex(0), ids("b"))
    bench.attend()
    assert bench.connector.declined == [b"a"]
    assert bench.connector.asked == {}  # b's find is left, and with it the ticket


def test_a_ticket_for_what_the_pool_has_is_given_back(tiny: Path, bench: KvBench):
    bench.add(a_request("a", PROMPT))
    bench.settle()
    for name in ("b", "c"):
        bench.add(a_request(name, PROMPT, kv=KvParams(ticket=name.encode())))
    bench.settle()
    assert bench.connector.declined == [b"b", b"c"]
    assert bench.tokens("b") == bench.tokens("a")


@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize("how", ["found", "late", "dies", "never there"])
def test_who_must_load_and_cannot_ends_with_what_was_missing(tiny: Path, how: str, must: bool):
    bench = KvBench(tiny, a_config(), answers=False, connects=how != "never there")
    bench.add(a_request("a", PROMPT, kv=KvParams(ticket=b"t", must_load=must)))
    bench.attend()
    match how:
        case "found":
            (find,) = bench.connector.asked
            bench.connector.answer_find(find, error="the lease is over")
            bench.talk()
        case "late":
            bench.now = WAITED
        case "dies":
            bench.lose()
    bench.run()
    if must:
        error = bench.finish("a").error
        assert error is not None
        assert error.startswith("0 of 3 KV blocks of the prompt could be loaded: ")
    else:
        assert bench.tokens("a") == tokens_alone(tiny)


# ---------------------------------------------------------------------------------------------- exporting


def test_an_end_waits_for_its_ticket(tiny: Path, bench: KvBench):
    bench.answers = False
    bench.add(a_request("a", PROMPT, max_tokens=3, kv=KvParams(exports=True)))
    bench.attend()
    bench.connector.answer_all()
    bench.talk()
    bench.run()
    assert [output.finish_reason for output in bench.outputs["a"]] == [None, None]
    assert bench.scheduler.request_ids == ["a"]
    bench.attend()
    ticket = bench.connector.answer_export()
    bench.talk()
    assert bench.finish("a").kv_ticket == ticket
    assert bench.finish("a").finish_reason is FinishReason.LENGTH
    assert bench.tokens("a") == tokens_alone(tiny, max_tokens=3)
    assert bench.connector.tickets[ticket] == list(bench.disk)
    assert len(bench.disk) == 4
    assert bench.scheduler.resync(ClientIndex(0), {ids("a")[0]: 0})[0].kv_ticket == ticket


def test_a_request_is_handed_over_after_its_first_token(tiny: Path, bench: KvBench):
    bench.add(a_request("a", PROMPT, kv=KvParams(hands_over=True)))
    bench.settle()
    (output,) = bench.outputs["a"]
    assert output.finish_reason is None
    assert output.new_token_ids == tokens_alone(tiny)[:1]
    assert bench.connector.tickets[output.kv_ticket] == list(bench.disk)
    assert not bench.scheduler.request_ids
    assert bench.scheduler.stats().kv_blocks_used == 0
    again = bench.scheduler.resync(ClientIndex(0), {ids("a")[0]: 0})
    assert [one.kv_ticket for one in again] == [output.kv_ticket]
    assert bench.scheduler.resync(ClientIndex(0), {ids("a")[0]: 1})[0].new_token_ids == []


def test_it_is_continued_by_another_engine(tiny: Path, bench: KvBench):
    bench.add(a_request("a", PROMPT, kv=KvParams(hands_over=True)))
    bench.settle()
    (output,) = bench.outputs["a"]
    after = successor(tiny, bench)
    first = output.new_token_ids
    after.add(a_request("a", PROMPT, continuation=first, kv=KvParams(ticket=output.kv_ticket)))
    after.settle()
    assert after.tokens("a") == tokens_alone(tiny)
    assert sum(len(row.token_ids) for row in after.plans[0].rows) == 3


def test_a_token_that_ends_a_request_is_not_handed_over(bench: KvBench):
    bench.add(a_request("a", PROMPT, max_tokens=1, kv=KvParams(hands_over=True)))
    bench.settle()
    assert bench.reason("a") is FinishReason.LENGTH
    assert bench.finish("a").kv_ticket is None


def test_with_two_steps_in_flight_none_is_computed_for_one_that_is_handed_over(tiny: Path):
    bench = KvBench(tiny, a_config(), max_in_flight=2)
    bench.add(a_request("a", PROMPT, kv=KvParams(hands_over=True)))
    bench.settle()
    assert sum(bool(plan.rows) for plan in bench.plans) == 1
    assert len(bench.outputs["a"]) == 1


def test_without_a_connector_there_are_empty_tickets_at_once(tiny: Path):
    bench = KvBench(tiny, a_config(), connects=False)
    bench.add(a_request("a", PROMPT, kv=KvParams(exports=True)))
    bench.run()
    assert bench.finish("a").kv_ticket == b""


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_without_a_connector_nobody_else_is_made_to_compute_the_prompt_again(tiny: Path, max_in_flight: int):
    bench = KvBench(tiny, a_config(), connects=False, max_in_flight=max_in_flight)
    bench.add(a_request("a", PROMPT, kv=KvParams(hands_over=True)))
    bench.run()
    assert [output.kv_ticket for output in bench.outputs["a"]] == [None] * len(bench.outputs["a"])
    assert bench.tokens("a") == tokens_alone(tiny)
    assert not bench.scheduler.request_ids


def test_it_has_no_place_that_others_wait_for(tiny: Path):
    bench = KvBench(tiny, a_config(max_num_seqs=2), connects=False)
    for name in ("a", "b", "c"):
        bench.add(a_request(name, PROMPT, kv=KvParams(hands_over=True)))
    bench.run()
    tickets = [bench.outputs[name][-1].kv_ticket for name in ("a", "b", "c")]
    assert sorted(ticket is None for ticket in tickets) == [False, True, True]
    assert not bench.scheduler.request_ids


def test_a_request_is_handed_over_once_there_is_a_connector(tiny: Path, bench: KvBench):
    bench.lose()
    bench.add(a_request("a", PROMPT, kv=KvParams(hands_over=True)))
    while len(bench.tokens("a")) < 2:
        bench.step()
    bench.connect()
    bench.settle()
    last = bench.outputs["a"][-1]
    assert last.finish_reason is None
    assert bench.connector.tickets[last.kv_ticket] == list(bench.disk)
    assert bench.tokens("a") == tokens_alone(tiny)[: len(bench.tokens("a"))]
    assert 2 < len(bench.tokens("a")) < len(tokens_alone(tiny))


def leaving(tiny: Path, **params: bool) -> KvBench:
    """Its request waits for a ticket that does not come."""
    bench = KvBench(tiny, a_config(), answers=False)
    bench.add(a_request("a", PROMPT, max_tokens=2, kv=KvParams(**params)))
    bench.attend()
    bench.connector.answer_all()
    bench.talk()
    bench.run()
    bench.attend()
    assert bench.scheduler.request_ids == ["a"]
    return bench


@pytest.mark.parametrize("params", [{"exports": True}, {"hands_over": True}], ids=["exports", "hands over"])
@pytest.mark.parametrize("how", ["late", "dies", "abort all", "deadline", "resync"])
def test_who_waits_for_a_ticket_in_vain_gets_the_rest(tiny: Path, how: str, params: dict):
    bench = leaving(tiny, **params)
    match how:
        case "late":
            bench.now = WAITED
            bench.attend()
        case "dies":
            bench.lose()
        case "abort all":
            bench.take(bench.scheduler.abort_all("enough"))
        case "deadline":
            request = msgspec.structs.replace(bench.requests["a"], deadline=1.0)
            bench.scheduler._live[request.request_id].request = request
            bench.scheduler._deadlines.note(bench.scheduler._live[request.request_id])
            bench.take(bench.scheduler.expire(2.0))
        case "resync":
            told = len(bench.outputs["a"])
            (output,) = bench.scheduler.resync(ClientIndex(0), {ids("a")[0]: told})
            bench.take([(ClientIndex(0), output)])
    last: EngineCoreOutput = bench.outputs["a"][-1]
    ends = {"abort all": FinishReason.ABORT, "deadline": FinishReason.ERROR}
    if "hands_over" in params and how in ends:  # it would have gone on
        assert (last.finish_reason, last.kv_ticket) == (ends[how], None)
    else:
        assert last.kv_ticket == b""
        assert last.finish_reason is (FinishReason.LENGTH if "exports" in params else None)
    assert bench.tokens("a") == tokens_alone(tiny, max_tokens=2)[: len(bench.tokens("a"))]
    assert not bench.scheduler.request_ids


@pytest.mark.parametrize("how", ["abort", "client", "twice"])
def test_who_waits_for_a_ticket_may_go(tiny: Path, how: str):
    bench = leaving(tiny, exports=True)
    match how:
        case "abort":
            bench.scheduler.abort(ClientIndex(0), ids("a"))
        case "client":
            bench.scheduler.abort_client(ClientIndex(0))
        case "twice":
            bench.take(bench.scheduler.add(bench.requests["a"]))
            assert bench.reason("a") is FinishReason.ERROR
    assert not bench.scheduler.request_ids
    while bench.connector.exports:
        bench.connector.answer_export()
    num_outputs = len(bench.outputs["a"])
    bench.settle()
    assert len(bench.outputs["a"]) == num_outputs
    assert bench.connector.declined == list(bench.connector.tickets), "it is given back, for nobody brings it"


@pytest.mark.parametrize("params", [{"exports": True}, {"hands_over": True}], ids=["exports", "hands over"])
def test_a_ticket_that_was_told_for_nothing_is_given_back_once(bench: KvBench, params: dict):
    """Its client has left while it was on its way."""
    bench.add(a_request("a", PROMPT, max_tokens=2, kv=KvParams(**params)))
    bench.settle()
    ticket = bench.outputs["a"][-1].kv_ticket
    assert ticket
    bench.scheduler.abort(ClientIndex(1), ids("a"))
    bench.talk()
    assert not bench.connector.declined, "it is another client's"
    for _ in range(2):
        bench.scheduler.abort(ClientIndex(0), ids("a"))
        bench.talk()
    assert bench.connector.declined == [ticket]


def test_blocks_that_the_connector_has_given_up_are_saved_once_more_for_a_ticket(tiny: Path):
    bench = KvBench(tiny, a_config())
    saved(bench)
    for block_hash in list(bench.connector.held):
        bench.connector._give_up(block_hash)
    bench.disk.clear()
    bench.answers = False
    bench.add(a_request("a", PROMPT, max_tokens=1, kv=KvParams(exports=True)))
    bench.run()
    bench.attend()
    assert bench.connector.answer_export() == b""
    bench.connector.grant(8)
    bench.talk()
    bench.run()
    bench.attend()
    assert len(bench.connector.tickets[bench.connector.answer_export()]) == 3


# ---------------------------------------------------------------------------------------------- its death, and others


def test_when_it_dies_all_goes_on_and_the_next_one_is_given_everything(tiny: Path):
    bench = KvBench(tiny, a_config(), answers=False)
    bench.add(a_request("a", PROMPT))
    bench.attend()
    bench.lose()
    bench.run()
    assert bench.tokens("a") == tokens_alone(tiny)
    bench.disk.clear()
    bench.answers = True
    bench.connect()
    bench.settle()
    assert len(bench.disk) == 4


def test_plans_of_its_predecessor_are_not_told_to_the_next_one(tiny: Path):
    bench = KvBench(tiny, a_config(), max_in_flight=2)
    bench.add(a_request("a", PROMPT, max_tokens=8))
    bench.step()
    plan = bench.schedule()
    assert plan.saves
    result = bench.compute(plan)
    bench.lose()
    bench.connect()
    bench.commit(plan, result)
    bench.settle()
    assert bench.tokens("a") == tokens_alone(tiny, max_tokens=8)


def test_one_that_is_expected_is_waited_for(tiny: Path, bench: KvBench):
    after = KvBench(tiny, a_config(), disk=saved(bench).disk, connects=False)
    after.scheduler.kv.expect(2.0)
    after.add(a_request("a", PROMPT, kv=KvParams(ticket=b"t", must_load=True)))
    assert after.schedule() is None
    assert after.scheduler.kv.next_deadline == 2.0
    after.connect()
    after.settle()
    assert after.outputs["a"][0].num_cached_tokens == 12


def test_one_that_is_expected_and_does_not_come_is_done_without(tiny: Path):
    bench = KvBench(tiny, a_config(), connects=False)
    bench.scheduler.kv.expect(2.0)
    bench.add(a_request("a", PROMPT))
    bench.add(a_request("b", PROMPT, kv=KvParams(ticket=b"t", must_load=True)))
    bench.now = 2.0
    bench.run()
    assert bench.tokens("a") == tokens_alone(tiny)
    assert "the connector is gone" in str(bench.finish("b").error)


@pytest.mark.parametrize("external", [False, True])
def test_a_reset_forgets_what_the_connector_has_if_it_is_to(tiny: Path, bench: KvBench, external: bool):
    saved(bench)
    assert bench.scheduler.reset_prefix_cache(preempts=False, external=external)
    bench.talk()
    assert bench.scheduler.kv.is_reset(1) == external
    bench.add(a_request("b", PROMPT))
    bench.settle()
    assert bench.outputs["b"][0].num_cached_tokens == (0 if external else 12)
    assert len(bench.disk) == 4


@pytest.mark.parametrize("external", [False, True])
def test_what_was_to_be_forgotten_while_there_is_no_connector_is_by_the_next_one(
    tiny: Path, bench: KvBench, external: bool
):
    """Which has what is on the disk."""
    saved(bench)
    bench.lose()
    assert bench.scheduler.reset_prefix_cache(preempts=False, external=external)
    bench.add(a_request("b", [7, *PROMPT]))
    bench.settle()
    bench.connect()
    assert bench.scheduler.kv.is_reset(1) == external
    bench.add(a_request("c", PROMPT))
    bench.settle()
    assert bench.outputs["c"][0].num_cached_tokens == (0 if external else 12)
    bench.lose()
    bench.connect()
    bench.scheduler.reset_prefix_cache(preempts=False, external=False)
    bench.add(a_request("d", PROMPT))
    bench.settle()
    assert bench.outputs["d"][0].num_cached_tokens == 12, "it forgets once"


def test_what_a_plan_saves_while_all_is_reset_is_not_told(bench: KvBench):
    bench.add(a_request("a", PROMPT, max_tokens=8))
    bench.step()
    plan = bench.schedule()
    assert plan.saves
    assert bench.scheduler.reset_prefix_cache(preempts=True, external=True)
    bench.commit(plan, bench.compute(plan))
    assert not bench.disk


def test_while_it_is_held_nothing_is_asked_or_saved(bench: KvBench):
    bench.answers = False
    bench.scheduler.hold = Hold.ALL
    bench.add(a_request("a", PROMPT))
    assert bench.schedule() is None
    assert not bench.connector.asked
    bench.scheduler.hold = Hold.NONE
    bench.attend()
    assert bench.connector.asked


def test_what_broke_a_row_is_not_loaded_again_before_it_is_saved_anew(tiny: Path, bench: KvBench):
    after = successor(tiny, saved(bench), answers=False)
    after.add(a_request("a", PROMPT, allowed_token_ids=[7], logit_bias={7: -100.0}))
    after.attend()
    after.scheduler.kv.retract(after.scheduler._live["a"].block_hashes.up_to(PROMPT, 13)[1:])
    after.add(a_request("b", PROMPT))
    after.attend()
    assert sorted(len(find.hashes) for find in after.connector.asked.values()) == [1, 3]


def test_what_it_counts_is_told_with_the_rest(bench: KvBench):
    counts = KvCounts(bench.connector.epoch, bench.connector.kv_epoch, {"free": 3})
    bench.take(bench.scheduler.hear_connector(counts))
    assert bench.scheduler.stats(whole=True).kv == counts
    assert bench.scheduler.stats().kv is None
    bench.lose()
    assert bench.scheduler.stats(whole=True).kv is None


def test_without_prefix_caching_it_is_left_alone(tiny: Path):
    bench = KvBench(tiny, a_config(enable_prefix_caching=False))
    bench.add(a_request("a", PROMPT, kv=KvParams(exports=True)))
    bench.settle()
    assert bench.finish("a").kv_ticket == b""
    assert not bench.connector.find_ids
