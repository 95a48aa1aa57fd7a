"""Adapters: who waits for which, who makes room, and that nobody's tokens depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.engine.adapter_places import AdapterChange
from actors.engine.hold import Hold
from protocol.errors import ConflictError
from protocol.lora import LoraId, LoraRequest
from protocol.messages import EngineCoreRequest, FinishReason
from protocol.operations import LoraState
from tests.helpers.scheduling import Bench, a_config, a_request, alone

PROMPT = list(range(3, 14))
LONG = 40


def a_bench(tiny: Path, max_loras: int, **sizes: int) -> Bench:
    return Bench(tiny, a_config(max_loras=max_loras, **sizes))


def running(bench: Bench) -> list[str]:
    return sorted(sequence.request_id for sequence in bench.scheduler._running)


def step(bench: Bench, count: int = 1) -> None:
    """Steps, each with the adapters that were wanted before it."""
    for _ in range(count):
        plan = bench.schedule()
        bench.bring_adapters()
        if plan is not None:
            bench.commit(plan, bench.compute(plan))


def coming(bench: Bench) -> list[AdapterChange]:
    """What is wanted now; the bench does not bring it."""
    plan = bench.schedule()
    if plan is not None:
        bench.commit(plan, bench.compute(plan))
    return bench.scheduler.take_adapter_changes()


def lora(number: int) -> LoraRequest:
    request = a_request(lora=number).lora
    assert request is not None
    return request


def test_each_adapter_gives_its_own_answer_in_one_batch_and_as_alone(tiny: Path):
    bench = a_bench(tiny, 2)
    requests = [a_request(f"r{number}", PROMPT, lora=number, max_tokens=9) for number in (0, 1, 2)]
    for request in requests:
        bench.add(request)
    step(bench, 3)
    assert running(bench) == ["r0", "r1", "r2"]
    bench.run()
    answers = [bench.tokens(request.request_id) for request in requests]
    assert answers == [alone(tiny, request).tokens(request.request_id) for request in requests]
    assert len({tuple(answer) for answer in answers}) == 3


def test_blocks_are_not_found_under_another_adapter(tiny: Path):
    bench = a_bench(tiny, 2)
    found = []
    for index, number in enumerate((0, 1, 2, 1, 0)):
        bench.add(a_request(f"r{index}", PROMPT, lora=number))
        bench.run()
        found.append(bench.outputs[f"r{index}"][0].num_cached_tokens)
    assert found == [0, 0, 0, 8, 8]


def test_whoever_waits_for_an_adapter_holds_up_nobody(tiny: Path):
    bench = a_bench(tiny, 1)
    bench.add(a_request("waits", lora=1))
    bench.add(a_request("plain"))
    assert coming(bench) == [AdapterChange(None, lora(1))]
    assert running(bench) == ["plain"]
    assert coming(bench) == []
    bench.runner.add_lora(lora(1), None)
    bench.scheduler.adapters.arrive(LoraId(1))
    bench.run()
    assert bench.finish("waits").finish_reason is FinishReason.LENGTH


def test_an_adapter_that_cannot_be_had_ends_those_who_asked_for_it(tiny: Path):
    bench = a_bench(tiny, 2)
    for request in (a_request("a", lora=1), a_request("b"), a_request("c", lora=1), a_request("d", lora=2)):
        bench.add(request)
    coming(bench)
    bench.take(bench.scheduler.fail_adapter(LoraId(1), "no such file"))
    assert [bench.finish(i).error for i in "ac"] == ["no such file"] * 2
    assert sorted(bench.scheduler.request_ids) == ["b", "d"]


def test_the_one_that_was_used_longest_ago_makes_room(tiny: Path):
    bench = a_bench(tiny, 2)
    for request_id, number in (("a", 1), ("b", 2), ("c", 1)):
        bench.add(a_request(request_id, lora=number))
        bench.run()
    bench.add(a_request("d", lora=3))
    assert coming(bench) == [AdapterChange(LoraId(2), lora(3))]


def test_a_pinned_one_makes_no_room_and_one_place_stays_for_others(tiny: Path):
    bench = a_bench(tiny, 2)
    adapters = bench.scheduler.adapters
    for number in (1, 2):
        bench.add(a_request(f"r{number}", lora=number))
        bench.run()
    adapters.pin(LoraId(1))
    assert adapters.state == LoraState([LoraId(1), LoraId(2)], [LoraId(1)])
    with pytest.raises(ConflictError, match="at most 1 adapters can be pinned"):
        adapters.pin(LoraId(2))
    with pytest.raises(ConflictError, match="adapter 9 is not loaded"):
        adapters.pin(LoraId(9))
    bench.add(a_request("c", lora=3))
    assert coming(bench) == [AdapterChange(LoraId(2), lora(3))]


def test_an_adapter_that_is_in_use_stays_and_closes_for_those_behind_who_waits_for_its_place(tiny: Path):
    """Else a stream of requests for the one would keep the other out for ever."""
    bench = a_bench(tiny, 1)
    bench.add(a_request("a", lora=1, max_tokens=LONG))
    step(bench, 3)
    bench.add(a_request("b", lora=2, arrival=1.0, max_tokens=LONG))
    bench.add(a_request("c", lora=1, arrival=2.0))
    bench.add(a_request("d", arrival=3.0, max_tokens=LONG))
    step(bench, 5)
    assert running(bench) == ["a", "d"]
    while "a" in running(bench):
        step(bench)
    step(bench, 3)
    assert "b" in running(bench)
    bench.run()
    assert bench.tokens("c") == alone(tiny, a_request("c", lora=1)).tokens("c")


def test_what_waits_further_in_front_keeps_its_adapter(tiny: Path):
    """It only lacks blocks; to bring it its adapter twice would help nobody."""
    bench = a_bench(tiny, 1, num_blocks=8)
    bench.add(a_request("a", lora=1))
    bench.run()
    bench.add(a_request("big", PROMPT, max_tokens=20))
    step(bench, 2)
    bench.add(a_request("b", range(3, 30), lora=1, arrival=1.0))
    bench.add(a_request("c", lora=2, arrival=2.0))
    assert coming(bench) == []
    bench.run()
    assert bench.finish("b").error is None
    assert bench.finish("c").error is None


def test_an_unloaded_adapter_leaves_once_its_requests_are_done(tiny: Path):
    bench = a_bench(tiny, 2)
    bench.add(a_request("a", lora=1, max_tokens=9))
    step(bench, 3)
    bench.scheduler.adapters.discard(LoraId(1))
    assert coming(bench) == []
    bench.run()
    assert bench.finish("a").finish_reason is FinishReason.LENGTH
    assert bench.runner.loras() == []
    assert bench.scheduler.adapters.state == LoraState([], [])


def test_one_that_is_unloaded_before_it_has_come_leaves_after_those_who_waited_for_it(tiny: Path):
    bench = a_bench(tiny, 1)
    bench.add(a_request("a", lora=1, max_tokens=9))
    step(bench, 2)
    bench.add(a_request("b", lora=2, arrival=1.0))
    step(bench)
    bench.scheduler.adapters.discard(LoraId(2))
    bench.scheduler.adapters.discard(LoraId(3))  # which nobody has asked for
    bench.run()
    assert bench.finish("b").finish_reason is FinishReason.LENGTH
    assert bench.runner.loras() == []
    bench.add(a_request("c", lora=3, arrival=2.0))
    bench.run()
    assert bench.runner.loras() == [LoraId(3)]


def test_one_that_is_wanted_again_before_it_left_stays(tiny: Path):
    bench = a_bench(tiny, 2)
    bench.add(a_request("a", lora=1))
    bench.run()
    bench.scheduler.adapters.discard(LoraId(1))
    assert not bench.scheduler.adapters.reserve(lora(1))
    bench.run()
    assert bench.runner.loras() == [1]


def test_a_preempted_sequence_gets_its_adapter_back_while_nobody_new_may_begin(tiny: Path):
    bench = a_bench(tiny, 1)
    bench.add(a_request("a", lora=1, max_tokens=9))
    step(bench, 4)
    bench.scheduler.reset_prefix_cache(preempts=True)
    bench.add(a_request("b", lora=2, priority=-1, arrival=-1.0))
    bench.scheduler.hold = Hold.NEW
    bench.run()
    assert bench.tokens("a") == alone(tiny, a_request("a", lora=1, max_tokens=9)).tokens("a")
    assert bench.scheduler.request_ids == ["b"]


def test_an_unwanted_one_stays_for_those_who_may_begin_only_later(tiny: Path):
    bench = a_bench(tiny, 2)
    bench.add(a_request("a", lora=1))
    bench.run()
    bench.scheduler.hold = Hold.NEW
    bench.add(a_request("b", lora=1, arrival=1.0))
    bench.scheduler.adapters.discard(LoraId(1))
    assert coming(bench) == []
    bench.scheduler.hold = Hold.NONE
    bench.run()
    assert bench.finish("b").finish_reason is FinishReason.LENGTH
    assert bench.runner.loras() == []


@pytest.mark.parametrize(
    ("max_loras", "number", "refusal"), [(0, 1, "--enable-lora"), (1, 2**63, "out of range"), (1, -1, "out of range")]
)
def test_an_engine_refuses_what_it_cannot_compute_with(tiny: Path, max_loras: int, number: int, refusal: str):
    bench = a_bench(tiny, max_loras)
    request: EngineCoreRequest = a_request("a", lora=number)
    bench.add(request)
    assert refusal in str(bench.finish("a").error)
