"""The thread that computes: the step loop hands it plans and awaits results, so that the actor's trio loop stays live.
It may be handed a plan before it has finished the one before, and then goes on without waiting for anybody.

One thread for the life of the runner, because an OpenMP team and a CUDA context belong to the thread that made them.
"""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, final

import outcome
import trio

from gpu.runner import Report, Runner
from protocol.spec import EngineFacts
from protocol.step import StepPlan, StepResult

OpenRunner = Callable[[Report], Runner]


class Stepper(Protocol):
    """What the step loop needs: `ThreadStepper`, or `InlineStepper` where virtual time rules."""

    facts: EngineFacts

    def submit(self, plan: StepPlan) -> None:
        """Run this plan after those that were submitted before it."""

    async def result(self) -> StepResult:
        """Of the oldest plan whose result has not been received. An exception means that the runner is broken."""


@final
class InlineStepper:
    """Steps in the calling task: for tests, whose clock jumps while a thread works."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._plans: deque[StepPlan] = deque()
        self.facts = runner.facts

    def submit(self, plan: StepPlan) -> None:
        self._plans.append(plan)

    async def result(self) -> StepResult:
        await trio.lowlevel.checkpoint()
        return self._runner.step(self._plans.popleft())


@final
class ThreadStepper:
    """Made by `open_stepper`."""

    def __init__(self, plans: queue.SimpleQueue[StepPlan | None]) -> None:
        self._plans = plans
        self._results_in, self._results = trio.open_memory_channel[outcome.Outcome[StepResult]](math.inf)
        self.facts: EngineFacts

    def submit(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    async def result(self) -> StepResult:
        return (await self._results.receive()).unwrap()

    def serve(
        self, open_runner: OpenRunner, report: Report, token: trio.lowlevel.TrioToken, loaded: trio.Event
    ) -> None:
        """The thread's main: load, then step until there is no more plan. Raises what loading raises."""
        runner = open_runner(report)
        try:
            self.facts = runner.facts
            token.run_sync_soon(loaded.set)
            while (plan := self._plans.get()) is not None:
                token.run_sync_soon(self._results_in.send_nowait, outcome.capture(runner.step, plan))
        finally:
            runner.close()


@asynccontextmanager
async def open_stepper(open_runner: OpenRunner, report: Report) -> AsyncIterator[ThreadStepper]:
    """Load the runner in its thread and yield once it is ready. Raises what `open_runner` raises.

    `report` is called in the thread. On leaving, a step under way is waited for: the process's own deadline
    (actors/child.py) bounds that.
    """
    plans: queue.SimpleQueue[StepPlan | None] = queue.SimpleQueue()
    stepper = ThreadStepper(plans)
    loaded = trio.Event()
    async with trio.open_nursery() as nursery:
        serve = (stepper.serve, open_runner, report, trio.lowlevel.current_trio_token(), loaded)
        nursery.start_soon(trio.to_thread.run_sync, *serve)
        try:
            await loaded.wait()
            yield stepper
        finally:
            plans.put(None)
