"""What nobody waits for any longer does not run on: the scheduler ends it when it is told the time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.engine.deadlines import Deadlines
from actors.engine.sequence import Sequence
from protocol.messages import EngineCoreRequest, FinishReason
from tests.helpers.scheduling import Bench, a_config, a_request


def due_at(deadline: float | None, name: str = "a", **fields: object) -> EngineCoreRequest:
    return msgspec.structs.replace(a_request(name, **fields), deadline=deadline)


@pytest.fixture
def bench(tiny) -> Bench:
    return Bench(tiny, a_config(max_num_seqs=2))


def test_running_and_waiting_requests_end_with_their_tokens_told_and_give_all_back(bench):
    for name in "abc":
        bench.add(due_at(7.0, name, max_tokens=50))
    bench.add(due_at(None, "d", max_tokens=3))
    for _ in range(2):
        bench.step()
    assert bench.scheduler.expire(6.9) == []
    ended = bench.scheduler.expire(7.0)

    assert [(o.request_id, o.finish_reason) for _, o in ended] == [(name, FinishReason.ERROR) for name in "abc"]
    assert {o.error for _, o in ended} == {"the request was not finished by its deadline"}
    assert [o.offset for _, o in ended] == [2, 2, 0]
    assert bench.scheduler.request_ids == ["d"]
    bench.run()
    assert len([t for o in bench.outputs["d"] for t in o.new_token_ids]) == 3
    assert bench.scheduler.stats().kv_blocks_used == 0


def test_one_that_ends_while_its_step_runs_costs_nothing_else(bench):
    bench.add(due_at(7.0))
    bench.add(due_at(None, "b"))
    plan = bench.schedule()
    assert len(bench.scheduler.expire(8.0)) == 1
    bench.commit(plan, bench.compute(plan))

    assert bench.outputs["a"] == []
    assert len(bench.outputs["b"]) == 1


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=8), st.lists(st.integers(0, 25), max_size=6))
def test_each_is_found_at_the_first_look_after_its_deadline(deadlines, looks):
    watched = Deadlines()
    live = {}
    for i, deadline in enumerate(deadlines):
        live[i] = Sequence(due_at(deadline, str(i)), i, 20, None, None)
        watched.note(live[i])
    for now in sorted(looks):
        late = [i for i in live if deadlines[i] is not None and deadlines[i] <= now]
        assert watched.passed(live.values(), now) == [live[i] for i in late]
        live = {i: sequence for i, sequence in live.items() if i not in late}
