"""The engine's administrative operations: pausing, sleeping, profiling, and looking at it.

An operation that holds the scheduler does so at once, so that nothing that arrives after it is computed before it; what
takes time (finishing what has begun, the runner's memory) comes after that, in a task of the engine's. Used by
actors/engine/main.py.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import assert_never, final

import trio

from actors.control import Pulse
from actors.engine.adapter_loader import AdapterLoader
from actors.engine.hold import Hold
from actors.engine.scheduler import Scheduler
from actors.engine.stepper import Stepper
from actors.engine.turns import Turn, Turns
from gpu.runner import Runner
from protocol.errors import BadRequestError, ConflictError, TrillmError
from protocol.operations import (
    AbortAll,
    AddLora,
    AllAborted,
    CacheReset,
    EngineState,
    GetState,
    ListLoras,
    Pause,
    PauseMode,
    PinLora,
    ProfileState,
    RemoveLora,
    ResetPrefixCache,
    Resume,
    RunState,
    Sleep,
    SleepTag,
    StartProfile,
    StopProfile,
    UtilityOperation,
    UtilityResult,
    WakeUp,
)

DEEPEST_SLEEP = 2
RESET_SECONDS = 3.0
"""For the connector to forget; the app waits a little longer for the answer (app/engine_calls.py)."""

Rest = Callable[[], Awaitable[UtilityResult]]
"""What is left of an operation that takes time. Raises TrillmError."""


@final
class Operations:
    """Of one engine. Pausing and sleeping are independent of each other: steps are taken while it does neither."""

    def __init__(
        self,
        scheduler: Scheduler,
        stepper: Stepper,
        pulse: Pulse,
        profiler_directory: Path | None,
        end_all: Callable[[str], int],
        adapters: AdapterLoader,
    ) -> None:
        """`end_all` ends every request of the engine with a sentence for its client, and says how many these were."""
        self._scheduler = scheduler
        self._stepper = stepper
        self._pulse = pulse
        self._profiler_directory = profiler_directory
        self._end_all = end_all
        self._adapters = adapters
        self._paused = Hold.NONE
        self._sleeping = Hold.NONE
        self._sleep_level: int | None = None
        self._asleep: list[SleepTag] = []
        self._num_sleeps = 0  # that were asked for
        self._num_ended = 0  # the first so many of them, by a wake that was asked for after them
        self._turns = Turns()  # of giving memory back and taking it back
        self._num_profiles = 0
        self._moved = trio.Event()

    @property
    def run_state(self) -> RunState:
        """What is done. A pause that still waits for requests is none yet: the next engine is not to repeat it."""
        return RunState(self._paused is Hold.ALL, self._sleep_level, self._asleep)

    def notice(self) -> None:
        """To be called when the scheduler may have moved: somebody may be waiting for it to be done."""
        if self._moved.statistics().tasks_waiting:
            self._moved.set()
            self._moved = trio.Event()

    def begin(self, operation: UtilityOperation) -> UtilityResult | Rest:
        """The answer, or what has to be awaited for it. Raises TrillmError."""
        match operation:
            case GetState():
                return EngineState(
                    self._scheduler.stats(), self._scheduler.request_ids, self._pulse.beat().phase, self.run_state
                )
            case ResetPrefixCache():
                return self._begin_reset(operation)
            case AbortAll():
                return AllAborted(self._end_all("The operator of this server ended this request"), self.run_state)
            case Pause():
                return self._begin_pause(operation)
            case Resume():
                self._paused = Hold.NONE
                self._update()
                return self.run_state
            case Sleep():
                return self._begin_sleep(operation)
            case WakeUp(tags=tags):
                return partial(self._wake, tags, self._num_sleeps, self._turns.take())
            case StartProfile():
                return self._start_profile
            case StopProfile():
                return partial(self._stepper.apply, lambda runner: runner.stop_profile())
            case AddLora() | RemoveLora() | ListLoras() | PinLora():
                return self._begin_adapters(operation)
            case _:
                assert_never(operation)

    def _begin_adapters(self, operation: AddLora | RemoveLora | ListLoras | PinLora) -> UtilityResult | Rest:
        if not self._scheduler.adapters.num_places:
            raise BadRequestError("this engine computes without adapters (--enable-lora)")
        match operation:
            case AddLora(lora=lora):
                return partial(self._adapters.add, lora)
            case RemoveLora(lora_id=lora_id):
                return self._adapters.remove(lora_id)
            case ListLoras():
                return self._scheduler.adapters.state
            case PinLora(lora_id=lora_id):
                return self._adapters.pin(lora_id)
            case _:
                assert_never(operation)

    def _begin_reset(self, operation: ResetPrefixCache) -> CacheReset | Rest:
        external = operation.reset_external
        was_done = self._scheduler.reset_prefix_cache(preempts=operation.reset_running_requests, external=external)
        if not was_done or not external or not self._scheduler.kv.is_used:
            return CacheReset(was_done)
        if not self._scheduler.kv.is_up:
            return CacheReset(False)  # the next one forgets what is on the disk, once it is there
        return partial(self._finish_reset, self._scheduler.kv.num_resets)

    async def _finish_reset(self, number: int) -> CacheReset:
        kv = self._scheduler.kv
        connection = kv.connection
        with trio.move_on_after(RESET_SECONDS):
            while not kv.is_reset(number) and kv.connection == connection:
                await self._moved.wait()
        return CacheReset(kv.is_reset(number))

    def _update(self) -> None:
        self._scheduler.hold = max(self._paused, self._sleeping)
        self.notice()

    # ------------------------------------------------------------------ pausing

    def _begin_pause(self, operation: Pause) -> Rest:
        if operation.mode is PauseMode.ABORT:
            self._end_all("The engine was paused before this answer was complete")
        self._paused = max(self._paused, _hold_of(operation.mode))
        self._update()
        return partial(self._finish_pause, operation.clear_cache)

    async def _finish_pause(self, clear_cache: bool) -> RunState:
        while self._paused is Hold.NEW and self._scheduler.num_begun:
            await self._moved.wait()
        if self._paused is Hold.NONE:
            raise ConflictError("the engine was resumed before it was paused")
        self._paused = Hold.ALL
        self._update()
        if clear_cache:
            self._scheduler.reset_prefix_cache(preempts=True, external=True)
        await self._stepper.apply(_nothing)  # behind the steps under way
        return self.run_state

    # ------------------------------------------------------------------ sleeping

    def _begin_sleep(self, operation: Sleep) -> Rest:
        if not 0 <= operation.level <= DEEPEST_SLEEP:
            raise BadRequestError(f"level must be from 0 to {DEEPEST_SLEEP}, not {operation.level}")
        if operation.mode is PauseMode.ABORT:
            self._end_all("The engine was put to sleep before this answer was complete")
        self._num_sleeps += 1
        self._sleeping = max(self._sleeping, _hold_of(operation.mode))
        self._update()
        turn = None if operation.mode is PauseMode.WAIT else self._turns.take()
        return partial(self._finish_sleep, self._num_sleeps, operation.level, turn)

    async def _finish_sleep(self, number: int, level: int, turn: Turn | None) -> RunState:
        while number > self._num_ended and self._sleeping is Hold.NEW and self._scheduler.num_begun:
            await self._moved.wait()
        async with turn or self._turns.take():
            if number <= self._num_ended:
                raise ConflictError("the engine was woken before it slept")
            self._sleeping = Hold.ALL
            self._update()
            if level > 0:
                # Weights that are read again may be others; those that come back from memory are the same.
                self._scheduler.reset_prefix_cache(preempts=True, external=level > 1)
                self._asleep = await self._stepper.apply(lambda runner: runner.sleep(level))
            self._sleep_level = max(level, self._sleep_level or 0)
        return self.run_state

    async def _wake(self, tags: list[SleepTag], num_sleeps: int, turn: Turn) -> RunState:
        """The end of the first `num_sleeps` sleeps. Those that were asked for since go on holding the scheduler."""
        async with turn:
            wanted = set(tags or SleepTag)
            wakes = [tag for tag in self._asleep if tag in wanted]
            if wakes:
                await self._wake_memory(wakes)
            if not self._asleep and (wakes or SleepTag.SCHEDULING in wanted):
                self._num_ended, self._sleep_level = num_sleeps, None
                if num_sleeps == self._num_sleeps:
                    self._sleeping = Hold.NONE
                self._update()
        return self.run_state

    async def _wake_memory(self, tags: list[SleepTag]) -> None:
        try:
            self._asleep = await self._stepper.apply(lambda runner: runner.wake(tags))
        except TrillmError:
            self._asleep = await self._stepper.apply(lambda runner: runner.sleep(0))  # some of it may be awake
            raise

    # ------------------------------------------------------------------ profiling

    async def _start_profile(self) -> ProfileState:
        if self._profiler_directory is None:
            raise ConflictError("this engine has no directory for profiles (--profiler-dir)")
        self._num_profiles += 1
        time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = self._profiler_directory / f"trillm-{time}-{os.getpid()}-{self._num_profiles}.trace.json"
        return await self._stepper.apply(lambda runner: runner.start_profile(path))


def _hold_of(mode: PauseMode) -> Hold:
    return Hold.NEW if mode is PauseMode.WAIT else Hold.ALL


def _nothing(runner: Runner) -> None:
    """Done once all that was asked of the runner before is done."""
