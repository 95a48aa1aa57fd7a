"""The engines behind one API server: registers each request, hands its outputs to whoever waits, ends it exactly once,
and goes on with it when an engine or the output handler dies.

Implements app/engine.py's EngineClient over the actors' House. Everything but waiting is synchronous, so that there is
no moment at which a cancellation could leave a request half registered.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import count
from typing import assert_never, final

import trio

from actors.handles import (
    ActorState,
    EngineLost,
    House,
    HouseEvent,
    HouseFailed,
    HouseSpec,
    OutputLost,
    open_actors,
)
from app.deadline import GRACE_SECONDS, Deadline
from app.engine import LorasInUse, Prompt, Readiness
from app.engine_calls import EngineCalls
from app.engine_totals import EngineTotals
from app.incidents import Incidents
from app.journal import Entry
from app.late_actors import what_is_late
from app.late_requests import LateRequests
from app.mailbox import ActorGeneration
from app.replays import Replays
from app.room import Room
from protocol.engine_stats import EngineStats
from protocol.errors import EngineDeadError, TrillmError, UnavailableError
from protocol.ids import FIRST_CLIENT, EngineIndex, Epoch, RequestId
from protocol.messages import AbortRequest, EngineAttached, RequestOutput, RequestOutputs, UtilityAnswer
from protocol.operations import EngineState, GetState, RunState, UtilityOperation, UtilityResult
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import EngineFacts

logger = logging.getLogger("trillm")


@final
class ActorEngineClient:
    """Fulfils app.engine.EngineClient. Until `run` is given the house it is not ready."""

    def __init__(
        self,
        *,
        max_live_requests: int,
        max_queue_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        to_check: str | None = None,
    ) -> None:
        """`max_queue_seconds`: how long a request may wait for its first token. `clock`: that of the engines.
        `to_check`: why no requests are taken, though the engines are up, until `admit` is called."""
        self._max_queue_seconds = max_queue_seconds
        self._clock = clock
        self.incidents = Incidents()
        self._house: House | None = None
        self._facts: EngineFacts | None = None
        self._attached: dict[EngineIndex, Epoch] = {}
        self._totals = EngineTotals()
        self._live: dict[RequestId, Entry] = {}
        self._room = Room(self._live, max_live_requests)
        self._replays = Replays(self._live, self.incidents)
        self._calls = EngineCalls()
        self._late = LateRequests(
            self._live, self._end, max_queue_seconds, self.incidents, lambda: self._calls.run_state.is_held
        )
        self._ids = count(1)
        self._draining: str | None = None
        self._failure: str | None = None
        self._to_check = to_check
        self.attached_once = trio.Event()
        self.admitted = trio.Event()
        self.failed = trio.Event()

    def __repr__(self) -> str:
        return f"<ActorEngineClient live={len(self._live)} attached={self._attached} failure={self._failure!r}>"

    # ------------------------------------------------------------------ what the routes see

    @property
    def facts(self) -> EngineFacts | None:
        return self._facts

    @property
    def alive(self) -> bool:
        return self._failure is None

    @property
    def failure(self) -> str | None:
        """Why the service is beyond recovery."""
        return self._failure

    @property
    def stats(self) -> EngineStats:
        """Over all engines. A dead one's gauges no longer count; counters go on where its predecessor's ended."""
        return self._totals.reading(self._attached)

    @property
    def num_requests(self) -> int:
        return len(self._live)

    @property
    def loras_in_use(self) -> LorasInUse:
        running: set[str] = set()
        waiting: set[str] = set()
        for entry in self._live.values():
            if entry.prompt.lora is not None:
                (running if entry.token_ids else waiting).add(entry.prompt.lora.name)
        return LorasInUse(tuple(sorted(running)), tuple(sorted(waiting)))

    def live(self) -> list[Entry]:
        """The journal: what is kept of each request that has not ended."""
        return list(self._live.values())

    @property
    def readiness(self) -> Readiness:
        reason = self._failure or self._draining
        if reason is None:
            reason = self._what_is_late()
        if reason is None and not self._attached:
            reason = "the actors are being connected"
        if reason is None:
            reason = self._to_check
        return Readiness(reason is None, reason or "")

    def _what_is_late(self) -> str | None:
        return what_is_late(self.actors())

    def actors(self) -> Sequence[ActorState]:
        return self._house.states() if self._house else []

    def generate(
        self, prompts: Sequence[Prompt], deadline: Deadline | None = None, *, goes_on: bool = False, waits: bool = False
    ) -> AbstractAsyncContextManager[ActorGeneration]:
        return self._generate(prompts, deadline, goes_on, waits)

    @asynccontextmanager
    async def _generate(
        self, prompts: Sequence[Prompt], deadline: Deadline | None, goes_on: bool, waits: bool
    ) -> AsyncIterator[ActorGeneration]:
        self._check_ready(goes_on or waits)
        first_token_by = trio.current_time() + self._max_queue_seconds
        if waits:
            with trio.move_on_at(first_token_by if deadline is None else min(first_token_by, deadline.at)) as scope:
                await self._room.wait(len(prompts))
            if scope.cancelled_caught:
                raise self._late.lateness(deadline)
            self._check_ready(is_patient=True)
        elif not goes_on:
            self._room.check(len(prompts))
        generation = self._start(prompts, deadline, first_token_by, goes_on or waits)
        try:
            yield generation
        finally:
            self._abort(generation)

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        if self._house is None:
            raise UnavailableError(f"Not ready: {self.readiness.reason}")
        return await self._house.check_grammar(source)

    @property
    def run_state(self) -> RunState:
        return self._calls.run_state

    async def operate(self, operation: UtilityOperation) -> list[UtilityResult]:
        if not self._attached or self._what_is_late() is not None:
            raise UnavailableError(f"Not ready: {self._what_is_late() or self.readiness.reason}")
        results: dict[EngineIndex, UtilityResult] = {}
        errors: list[TrillmError] = []

        async def operate_one(index: EngineIndex) -> None:
            try:
                results[index] = await self._operate_one(index, operation)
            except TrillmError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for index in self._attached:
                nursery.start_soon(operate_one, index)
        if errors:
            raise errors[0]
        return [results[index] for index in sorted(results)]

    async def engine_state(self, index: EngineIndex) -> EngineState:
        """What the engine says of itself. Raises UnavailableError, and as `operate` does."""
        state = await self._operate_one(index, GetState())
        assert isinstance(state, EngineState), f"engine {index} has answered with {state}"
        return state

    async def _operate_one(self, index: EngineIndex, operation: UtilityOperation) -> UtilityResult:
        epoch = self._attached.get(index)
        if epoch is None:
            raise UnavailableError(f"engine {index} is not ready")
        return await self._calls.call(index, epoch, operation, partial(self._actors.send_to_engine, index))

    # ------------------------------------------------------------------ what serving does with it

    def admit(self) -> None:
        """Requests are taken from here on, as far as the engines are up."""
        self._to_check = None
        self.admitted.set()

    def drain(self, reason: str) -> None:
        """Take no more requests; those that run go on."""
        self._draining = reason

    def end_all(self, error: TrillmError) -> None:
        """Every live request ends with this error, now, here and in the actors."""
        for generation in {id(entry.generation): entry.generation for entry in self._live.values()}.values():
            generation.fail(error)
            self._abort(generation)

    def give_up(self, reason: str) -> None:
        """The service cannot go on, for a reason that the operator has been told."""
        self._failure = reason
        self._attached.clear()
        self.end_all(EngineDeadError(f"The service cannot go on: {reason}"))
        self.end_operations(reason)
        self._room.freed(self._room.num_waiting)  # those who wait hear of it, too
        self.failed.set()

    def end_operations(self, reason: str) -> None:
        """Nobody waits for an engine's answer any longer."""
        self._calls.fail(None, reason)

    async def run_actors(self, spec: HouseSpec) -> None:
        """Keep the actors alive and serve over them until cancelled; then stop them all."""
        async with open_actors(spec) as house:
            await self.run(house)

    async def run(self, house: House) -> None:
        """Serve over this house until cancelled."""
        self._house = house
        house.listen(self._take)
        await self._late.run()

    @property
    def _actors(self) -> House:
        assert self._house is not None, "an engine is attached only once there is a house"
        return self._house

    # ------------------------------------------------------------------ requests

    def _check_ready(self, is_patient: bool) -> None:
        readiness = self.readiness
        if not readiness.ready and not (is_patient and self.alive):
            raise UnavailableError(f"Not ready: {readiness.reason}")

    def _start(
        self, prompts: Sequence[Prompt], deadline: Deadline | None, first_token_by: float, is_patient: bool
    ) -> ActorGeneration:
        generation = ActorGeneration([RequestId(f"r{next(self._ids)}") for _ in prompts])
        arrival, now = self._clock(), trio.current_time()
        drop_at = None if deadline is None else arrival + deadline.at - now + GRACE_SECONDS
        loads = self._replays.loads()
        try:
            for request_id, prompt in zip(list(generation.unfinished), prompts, strict=True):
                entry = Entry(request_id, prompt, generation, arrival, deadline, drop_at, first_token_by)
                self._live[request_id] = entry
                self._late.note(entry)
                if self._attached and self._send(entry, loads):
                    continue
                entry.engine = None  # the next one that is up takes it
                if not is_patient:
                    raise UnavailableError("Not ready: the engine or the output handler has just gone down")
        except TrillmError:
            self._abort(generation)
            raise
        return generation

    def _send(self, entry: Entry, loads: Counter[EngineIndex]) -> bool:
        """Whether it could be sent to an engine: the one with the least to do. `loads` then counts it."""
        index = min(self._attached, key=lambda each: loads[each])
        epoch = self._attached[index]
        request = entry.request(epoch)
        entry.engine = (index, epoch)
        loads[index] += 1
        # The output handler first: it should know the request before the engine's first token comes.
        return self._actors.send_to_output(request) and self._actors.send_to_engine(index, request)

    def _end(self, entry: Entry, error: TrillmError) -> None:
        """This one, with all choices of its call."""
        entry.generation.fail(error)
        self._abort(entry.generation)

    def _abort(self, generation: ActorGeneration) -> None:
        """Forget what is unfinished, here and in the actors. Idempotent."""
        entries = [entry for i in generation.unfinished if (entry := self._live.pop(i, None))]
        self._room.freed(len(entries))
        self._withdraw(entries)
        if any(entry.is_on_trial for entry in entries):
            self._go_on()

    def _withdraw(self, entries: list[Entry]) -> None:
        """Tell the actors to drop these, wherever they run."""
        by_engine: dict[tuple[EngineIndex, Epoch], list[RequestId]] = {}
        for entry in entries:
            if entry.engine is not None:
                by_engine.setdefault(entry.engine, []).append(entry.request_id)
                entry.engine = None
        for (index, epoch), ids in by_engine.items():
            abort = AbortRequest(epoch, FIRST_CLIENT, ids)
            self._actors.send_to_engine(index, abort)
            self._actors.send_to_output(abort)

    def _go_on(self) -> None:
        """Hand what waits for an engine to one that is up."""
        if not self._attached or not (due := self._replays.take_due()):
            return
        loads = self._replays.loads()
        for entry in due:
            if not self._send(entry, loads):
                entry.engine = None  # it has gone down again: the next one that is up takes it

    # ------------------------------------------------------------------ events

    def _take(self, event: HouseEvent) -> None:
        match event:
            case RequestOutputs(engine_index=index, epoch=epoch, outputs=outputs, stats=stats):
                if self._attached.get(index) == epoch:
                    self._totals.take(index, stats)
                    for output in outputs:
                        self._deliver(output)
            case EngineAttached(engine_index=index, epoch=epoch):
                if (facts := self._actors.engine_facts(index, epoch)) is not None:
                    self._facts = facts
                    self._calls.hold_again(index, epoch, partial(self._actors.send_to_engine, index))
                    self._attached[index] = epoch
                    if self.attached_once.is_set():
                        waiting = self._replays.num_waiting
                        logger.info("engine-%s serves again, and %s requests go on", index, waiting)
                    self._totals.attach(index, epoch, facts.num_blocks)
                    self.attached_once.set()
                    self._go_on()
            case UtilityAnswer(engine_index=index, reply=reply):
                if self._attached.get(index) == reply.epoch:
                    self._calls.take(index, reply)
            case EngineLost(engine_index=index, epoch=epoch, reason=reason, from_outside=from_outside):
                self.incidents.deaths[f"engine-{index}"] += 1
                if self._attached.get(index) == epoch:
                    del self._attached[index]
                told = f"The engine process that ran this request is gone: {reason}"
                self._lose_engine((index, epoch), told, is_innocent=from_outside or self._calls.is_held(index))
            case OutputLost(reason=reason):
                self.incidents.deaths["output-0"] += 1
                # The engine still runs them, and drops them when it sees that its subscriber is gone; whichever it
                # hears first, it must not have them twice.
                self._attached.clear()
                self._withdraw(list(self._live.values()))
                self._calls.fail(None, reason)
            case HouseFailed(reason=reason):
                self.give_up(reason)
            case _:
                assert_never(event)

    def _deliver(self, output: RequestOutput) -> None:
        entry = self._live.get(output.request_id)
        if entry is None:
            return  # aborted: what was still on its way does not matter
        was_on_trial = entry.is_on_trial
        entry.deliver(output)
        if output.finish_reason is not None:
            del self._live[output.request_id]
            self._room.freed(1)
        if was_on_trial:
            self._go_on()

    def _lose_engine(self, engine: tuple[EngineIndex, Epoch], reason: str, *, is_innocent: bool) -> None:
        """Its requests wait for the next one, but for those that are taken for the cause."""
        for entry in self._replays.lose(engine, is_innocent=is_innocent):
            del self._live[entry.request_id]
            self._room.freed(1)
            told = f"{reason}; it is number {entry.deaths} in a row to die under this request"
            entry.generation.fail(EngineDeadError(told))
        self._calls.fail(engine[0], reason)
