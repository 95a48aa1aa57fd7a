"""What nobody waits for any longer does not run on: the scheduler ends it when it is told the time."""

from __future__ import annotations

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.control import Pulse
from actors.engine.deadlines import Deadlines
from actors.engine.main import make_engine
from actors.engine.sequence import Sequence
from actors.engine.stepper import InlineStepper
from gpu.fake_runner import FakeRunner
from protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineOutput, FinishReason
from protocol.step import StepResult
from tests.helpers.memory_house import dummy_engine_spec
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


class SlowStepper:
    """A step takes 0.4 s of virtual time."""

    def __init__(self, runner: FakeRunner) -> None:
        self._inner = InlineStepper(runner)
        self.facts = runner.facts
        self.submit = self._inner.submit

    async def result(self) -> StepResult:
        await trio.sleep(0.4)
        return await self._inner.result()


class Subscriber:
    """A client that hears everything."""

    def __init__(self) -> None:
        self.outputs: list[EngineCoreOutput] = []
        self._coming = iter([True])

    def send_nowait(self, value: EngineOutput) -> None:
        if isinstance(value, EngineCoreOutputs):
            self.outputs += value.outputs

    async def receive(self) -> bool:
        for subscribed in self._coming:
            return subscribed
        await trio.sleep_forever()
        raise AssertionError


async def test_the_engine_ends_what_is_late_though_nobody_says_a_word(checkpoint, autojump_clock):
    spec, told = dummy_engine_spec(checkpoint, epoch=1), Subscriber()
    engine = make_engine(spec, SlowStepper(FakeRunner(spec)), {0: told}, Pulse(), clock=trio.current_time)
    say, inbox = trio.open_memory_channel(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, inbox)
        say.send_nowait(due_at(trio.current_time() + 5, max_tokens=900))
        await trio.sleep(30)
        nursery.cancel_scope.cancel()

    assert told.outputs[-1].error == "the request was not finished by its deadline"
    assert 10 < told.outputs[-1].offset < 16
    assert [output.finish_reason for output in told.outputs[:-1]] == [None] * (len(told.outputs) - 1)


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
