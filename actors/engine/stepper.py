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
from typing import Protocol, TypeVar, final

import attrs
import outcome
import trio

from gpu.load_report import Report
from gpu.runner import Runner
from gpu.started_step import StartedStep
from protocol.spec import EngineFacts
from protocol.step import StepPlan, StepResult

MAX_BESIDE = 4
"""Actions beside the steps at once; one that never ends keeps its place."""

OpenRunner = Callable[[Report], Runner]
T = TypeVar("T")


class Stop:
    """Ends a thread."""


@attrs.frozen
class FailedStep:
    """Implements gpu.started_step.StartedStep for a plan that broke the runner when it was started."""

    error: Exception

    def result(self) -> StepResult:
        raise self.error


class Stepper(Protocol):
    """What the step loop needs: `ThreadStepper`, or `InlineStepper` where virtual time rules."""

    facts: EngineFacts

    def submit(self, plan: StepPlan) -> None:
        """Run this plan after those that were submitted before it."""

    async def result(self) -> StepResult:
        """Of the oldest plan whose result has not been received. An exception means that the runner is broken."""

    async def apply(self, action: Callable[[Runner], T]) -> T:
        """What the action gives, or raises, done to the runner once all plans that were submitted have run. It is done
        also if the caller is cancelled meanwhile."""

    async def beside(self, action: Callable[[Runner], T]) -> T:
        """What the action gives, or raises, done while plans run: it may use only what the runner allows in any thread.
        If the caller is cancelled, nobody waits for it any longer."""


@final
class InlineStepper:
    """Steps in the calling task: for tests, whose clock jumps while a thread works."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._plans: deque[StepPlan] = deque()
        self._results: deque[StepResult] = deque()
        self.facts = runner.facts

    def submit(self, plan: StepPlan) -> None:
        self._plans.append(plan)

    async def result(self) -> StepResult:
        await trio.lowlevel.checkpoint()
        if self._results:
            return self._results.popleft()
        return self._runner.step(self._plans.popleft())

    async def apply(self, action: Callable[[Runner], T]) -> T:
        await trio.lowlevel.checkpoint()
        while self._plans:
            self._results.append(self._runner.step(self._plans.popleft()))
        return action(self._runner)

    async def beside(self, action: Callable[[Runner], T]) -> T:
        await trio.lowlevel.checkpoint()
        return action(self._runner)


@final
class ThreadStepper:
    """Made by `open_stepper`."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[StepPlan | Callable[[Runner], None] | Stop] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[StartedStep | Stop] = queue.SimpleQueue()
        self._results_in, self._results = trio.open_memory_channel[outcome.Outcome[StepResult]](math.inf)
        self._beside = trio.CapacityLimiter(MAX_BESIDE)
        self._runner: Runner
        self.facts: EngineFacts

    def submit(self, plan: StepPlan) -> None:
        self._work.put(plan)

    def stop(self) -> None:
        """End the thread after all that was asked of it before."""
        self._work.put(Stop())

    async def result(self) -> StepResult:
        return (await self._results.receive()).unwrap()

    async def apply(self, action: Callable[[Runner], T]) -> T:
        say, hear = trio.open_memory_channel[outcome.Outcome[T]](1)
        token = trio.lowlevel.current_trio_token()

        def act(runner: Runner) -> None:
            token.run_sync_soon(say.send_nowait, outcome.capture(action, runner))

        self._work.put(act)
        return (await hear.receive()).unwrap()

    async def beside(self, action: Callable[[Runner], T]) -> T:
        return await trio.to_thread.run_sync(action, self._runner, abandon_on_cancel=True, limiter=self._beside)

    def serve(
        self, open_runner: OpenRunner, report: Report, token: trio.lowlevel.TrioToken, loaded: trio.Event
    ) -> None:
        """The thread's main: load, then do what is asked until it is told to stop. Raises what loading raises."""
        try:
            runner = open_runner(report)
        except BaseException:
            self._started.put(Stop())
            raise
        try:
            self._runner, self.facts = runner, runner.facts
            token.run_sync_soon(loaded.set)
            started: StartedStep | None = None
            while not isinstance(work := self._work.get(), Stop):
                if isinstance(work, StepPlan):
                    started = _start(runner, work)
                    self._started.put(started)
                    continue
                if started is not None:
                    outcome.capture(started.result)  # an action comes after all steps; who asks for them sees errors
                work(runner)
        finally:
            self._started.put(Stop())
            runner.close()

    def finish(self, token: trio.lowlevel.TrioToken) -> None:
        """The other thread's main: wait for what was started, in its order, while `serve` starts what comes next. So a
        device has its next step before the host knows the last one's tokens."""
        while not isinstance(started := self._started.get(), Stop):
            token.run_sync_soon(self._results_in.send_nowait, outcome.capture(started.result))


def _start(runner: Runner, plan: StepPlan) -> StartedStep:
    try:
        return runner.start(plan)
    except Exception as error:  # the boundary of one plan: whoever asks for its result gets this
        return FailedStep(error)


@asynccontextmanager
async def open_stepper(open_runner: OpenRunner, report: Report) -> AsyncIterator[ThreadStepper]:
    """Load the runner in its thread and yield once it is ready. Raises what `open_runner` raises.

    `report` is called in the thread. On leaving, a step under way is waited for: the process's own deadline
    (actors/child.py) bounds that.
    """
    stepper = ThreadStepper()
    loaded = trio.Event()
    async with trio.open_nursery() as nursery:
        token = trio.lowlevel.current_trio_token()
        nursery.start_soon(trio.to_thread.run_sync, stepper.serve, open_runner, report, token, loaded)
        nursery.start_soon(trio.to_thread.run_sync, stepper.finish, token)
        try:
            await loaded.wait()
            yield stepper
        finally:
            stepper.stop()
