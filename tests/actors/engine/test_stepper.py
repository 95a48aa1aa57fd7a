"""The compute thread takes plans as they come, and gives results in their order."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import attrs
import pytest
import trio

from actors.engine.stepper import open_stepper
from gpu.load_report import Report
from gpu.runner import Runner
from gpu.started_step import FinishedStep, StartedStep
from protocol.errors import CheckpointError
from protocol.operations import ProfileState, SleepTag
from protocol.spec import EngineFacts
from protocol.step import StepPlan, StepResult

FACTS = EngineFacts(64, 8, 4, 64, "none", "none", 0, 0)


class GatedRunner:
    """Steps when it is let; breaks at step 99."""

    def __init__(self) -> None:
        self.facts = FACTS
        self.gate = threading.Semaphore(0)
        self.begun: list[int] = []
        self.is_closed = False

    def step(self, plan: StepPlan) -> StepResult:
        self.begun.append(plan.step)
        self.gate.acquire()
        if plan.step == 99:
            raise RuntimeError("broken")
        return StepResult(plan.step, [])

    def start(self, plan: StepPlan) -> StartedStep:
        return FinishedStep(self.step(plan))

    def close(self) -> None:
        self.is_closed = True

    def sleep(self, level: int) -> list[SleepTag]:
        self.begun.append(-level)
        return [SleepTag.KV_CACHE]

    def wake(self, tags: Collection[SleepTag]) -> list[SleepTag]:
        raise CheckpointError("the weights are gone")

    def start_profile(self, path: Path) -> ProfileState:
        return ProfileState(str(path))

    def stop_profile(self) -> ProfileState:
        return ProfileState("")


def plan(step: int) -> StepPlan:
    return StepPlan(step, [], [], [])


async def test_a_plan_may_be_submitted_before_the_one_before_it_is_done():
    runner = GatedRunner()
    async with open_stepper(lambda report: runner, lambda progress: None) as stepper:
        stepper.submit(plan(1))
        stepper.submit(plan(2))
        runner.gate.release(2)
        assert [(await stepper.result()).step for _ in range(2)] == [1, 2]
        assert runner.begun == [1, 2]
    assert runner.is_closed


async def test_what_is_done_beside_steps_waits_for_none_and_nobody_waits_for_it():
    runner, begun, stuck = GatedRunner(), threading.Event(), threading.Event()

    def wait(beside: Runner) -> None:
        begun.set()
        stuck.wait(5)

    async with open_stepper(lambda report: runner, lambda progress: None) as stepper:
        stepper.submit(plan(1))
        assert await stepper.beside(lambda beside: beside.facts) == FACTS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stepper.beside, wait)
            await trio.to_thread.run_sync(begun.wait, 5)
            nursery.cancel_scope.cancel()
        assert not stuck.is_set()
        runner.gate.release()
        assert (await stepper.result()).step == 1
    stuck.set()


class AheadRunner(GatedRunner):
    """Starts at once, and has a result when it is let."""

    def start(self, plan: StepPlan) -> StartedStep:
        self.begun.append(plan.step)
        return GatedStep(plan.step, self.gate)


@attrs.frozen
class GatedStep:
    """Implements gpu.started_step.StartedStep."""

    step: int
    gate: threading.Semaphore

    def result(self) -> StepResult:
        self.gate.acquire()
        return StepResult(self.step, [])


async def test_a_plan_is_started_while_the_one_before_it_is_waited_for():
    runner = AheadRunner()
    async with open_stepper(lambda report: runner, lambda progress: None) as stepper:
        stepper.submit(plan(1))
        stepper.submit(plan(2))
        with trio.fail_after(10):
            while runner.begun != [1, 2]:
                await trio.sleep(0.001)
        runner.gate.release(2)
        assert [(await stepper.result()).step for _ in range(2)] == [1, 2]


async def test_what_breaks_the_runner_is_raised_for_its_own_plan():
    runner = GatedRunner()
    async with open_stepper(lambda report: runner, lambda progress: None) as stepper:
        runner.gate.release(2)
        stepper.submit(plan(1))
        stepper.submit(plan(99))
        assert (await stepper.result()).step == 1
        with pytest.raises(RuntimeError, match="broken"):
            await stepper.result()


async def test_what_else_is_done_to_the_runner_is_done_between_plans_in_order():
    runner = GatedRunner()
    async with open_stepper(lambda report: runner, lambda progress: None) as stepper:
        runner.gate.release(2)
        stepper.submit(plan(1))
        assert await stepper.apply(lambda runner: runner.sleep(2)) == [SleepTag.KV_CACHE]
        with pytest.raises(CheckpointError, match="gone"):
            await stepper.apply(lambda runner: runner.wake([SleepTag.WEIGHTS]))
        stepper.submit(plan(3))
        assert [(await stepper.result()).step for _ in range(2)] == [1, 3]
        assert runner.begun == [1, -2, 3]


async def test_what_loading_raises_is_raised():
    def refuse(report: Report) -> GatedRunner:
        raise CheckpointError("no weights")

    with pytest.RaisesGroup(CheckpointError):
        async with open_stepper(refuse, lambda progress: None):
            pass
