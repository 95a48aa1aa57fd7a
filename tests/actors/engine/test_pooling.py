"""Prompts that are pooled, through the scheduler and the dummy runner: which vectors, and how they share a step."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.messages import EngineCoreRequest, FinishReason
from protocol.pooling import Pooling, PoolingParams
from protocol.step import Pooled, StepResult
from tests.helpers.scheduling import Bench, a_config, a_request, alone

KINDS = list(Pooling)


def to_pool(name: str, prompt: range, kind: Pooling = Pooling.LAST, **fields: object) -> EngineCoreRequest:
    return msgspec.structs.replace(a_request(name, prompt, max_tokens=0), pooling=PoolingParams(kind, **fields))


def vector(bench: Bench, name: str) -> bytes:
    (output,) = bench.outputs[name]
    assert (output.finish_reason, output.new_token_ids, output.offset) == (FinishReason.STOP, [], 0)
    assert output.embedding is not None
    return output.embedding


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("budget", [2, 5, 64])
def test_every_kind_gives_in_any_company_what_it_gives_alone(tiny: Path, budget: int, max_in_flight: int):
    requests = [to_pool(kind, range(3 + 2 * i, 20 + i), kind) for i, kind in enumerate(KINDS)]
    bench = Bench(tiny, a_config(max_num_batched_tokens=budget), max_in_flight)
    bench.add(a_request("talk", range(5, 9), max_tokens=20))
    for request in requests:
        bench.add(request)
    bench.run()
    for request in requests:
        assert vector(bench, request.request_id) == vector(alone(tiny, request), request.request_id)
    talk = a_request("talk", range(5, 9), max_tokens=20)
    assert bench.tokens("talk") == alone(tiny, talk).tokens("talk")
    assert bench.scheduler.stats().kv_blocks_used == 0


def test_only_the_last_token_alone_is_pooled_after_a_cached_prefix(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=64))
    bench.add(a_request("first", range(3, 23), max_tokens=1))
    bench.run()
    for kind in KINDS:
        bench.add(to_pool(kind, range(3, 23), kind))
        bench.run()
        assert vector(bench, kind) == vector(alone(tiny, to_pool(kind, range(3, 23), kind)), kind)
    assert {kind: bench.outputs[kind][0].num_cached_tokens for kind in KINDS} == {
        Pooling.LAST: 16,
        Pooling.MEAN: 0,
        Pooling.CLS: 0,
    }
    assert bench.scheduler.stats().prompt_tokens == 80


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_who_is_preempted_is_pooled_all_the_same(tiny: Path, kind: Pooling, max_in_flight: int):
    bench = Bench(tiny, a_config(num_blocks=8, max_num_batched_tokens=4, enable_prefix_caching=False), max_in_flight)
    bench.add(a_request("talk", range(5, 9), max_tokens=20, arrival=0.0))
    bench.add(msgspec.structs.replace(to_pool("a", range(3, 27), kind), arrival_time=1.0))
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    assert vector(bench, "a") == vector(alone(tiny, to_pool("a", range(3, 27), kind)), "a")


def test_a_prompt_that_is_pooled_may_be_as_long_as_the_context(tiny: Path):
    bench = Bench(tiny, a_config(max_model_len=20))
    bench.add(to_pool("fits", range(3, 23)))
    bench.add(to_pool("long", range(3, 24)))
    bench.add(a_request("talk", range(3, 23)))
    bench.run()
    assert vector(bench, "fits")
    assert bench.finish("long").error == "the prompt has 21 tokens, but at most 20 fit"
    assert bench.finish("talk").error == "the prompt has 20 tokens, but at most 19 fit"


@pytest.mark.parametrize(
    "changes", [{"continuation_token_ids": [5]}, {"pooling": PoolingParams(Pooling.LAST, True, 0)}]
)
def test_what_no_app_asks_for_is_refused(tiny: Path, changes: dict[str, object]):
    bench = Bench(tiny, a_config())
    bench.add(msgspec.structs.replace(to_pool("a", range(3, 9)), **changes))
    assert bench.reason("a") is FinishReason.ERROR
    assert not bench.scheduler.has_work


def test_a_vector_that_went_wrong_ends_its_request_and_its_blocks_are_not_found(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(to_pool("bad", range(3, 12)))
    plan = bench.schedule()
    assert plan is not None
    bench.compute(plan)
    error = Pooled(plan.rows[0].slot, b"", "the model's hidden states are not finite")
    bench.commit(plan, StepResult(plan.step, [], pooled=[error]))
    assert bench.finish("bad").error == error.error
    bench.add(to_pool("again", range(3, 12)))
    bench.run()
    assert bench.finish("again").num_cached_tokens == 0


def test_what_was_lost_on_the_way_is_said_again(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(to_pool("a", range(3, 9)))
    bench.run()
    (again,) = bench.scheduler.resync(bench.requests["a"].client_index, {bench.requests["a"].request_id: 0})
    assert (again.embedding, again.finish_reason) == (vector(bench, "a"), FinishReason.STOP)
